"""EAGLE heads that learn to go on from a target's features, and then from their own."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, LlamaConfig

from optimist_training.drafters.heads import save_eagle
from optimist_training.drafters.target import Lesson, Target, ahead, right_share, soft_loss
from optimist_worker.drafters.heads.eagle import EagleHead, FusedLayer

NAME = "optimist_chain"


class Chain:
    """Keys and values of the levels so far, by layer: chains from every position at once.

    Level 0 is the head's causal pass over the target's features. At level j the query at index p
    is that of position p + j of the chain that starts at p: it sees the keys of level 0 up to p
    and those of its own chain, as in the training-time test of EAGLE-3 (arXiv 2503.01840).
    """

    def __init__(self) -> None:
        self.keys: dict[int, list[Tensor]] = {}
        self.values: dict[int, list[Tensor]] = {}


def chain_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    chain: Chain,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attends at the next level of a chain.

    Args:
        module: The attention layer; its `layer_idx` names the layer.
        query: `[batch, num_heads, length, dim]`.
        key: `[batch, num_kv_heads, length, dim]`.
        value: The same.
        attention_mask: None.
        chain: The levels before; keys and values are added to it.
        scaling: Factor of the scores.

    Returns:
        `[batch, length, num_heads, dim]`, and None instead of attention weights.
    """
    layer: int = module.layer_idx  # type: ignore[assignment]
    groups = query.shape[1] // key.shape[1]
    keys, values = chain.keys.setdefault(layer, []), chain.values.setdefault(layer, [])
    keys.append(key.repeat_interleave(groups, 1))
    values.append(value.repeat_interleave(groups, 1))
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    if len(keys) == 1:
        output = functional.scaled_dot_product_attention(
            query, keys[0], values[0], is_causal=True, scale=factor
        )
        return output.transpose(1, 2), None
    length = query.shape[2]
    later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    scores = (query @ keys[0].mT * factor).masked_fill(later, float("-inf"))
    own = [(query * other).sum(-1, keepdim=True) * factor for other in keys[1:]]
    weights = torch.cat([scores, *own], dim=-1).softmax(-1)
    output = weights[..., :length] @ values[0]
    for number, other in enumerate(values[1:]):
        output = output + weights[..., length + number, None] * other
    return output.transpose(1, 2), None


AttentionInterface.register(NAME, chain_attention)


_FEATURE_WEIGHT = 0.1
"""Of the distance between features in the loss (EAGLE-1)."""


class EagleTrainee:
    """Trains a head on chains of several levels, each on the features that the last one made."""

    def __init__(self, head: EagleHead, num_levels: int, dtype: torch.dtype) -> None:
        """Takes a head to train.

        Args:
            head: As `new_head` or `load_eagle` return it.
            num_levels: Length of the chains it is trained on.
            dtype: To store its matrices in.
        """
        self.head, self._num_levels, self._dtype = head, num_levels, dtype
        self.layers = head.target_layers
        head.set_attn_implementation(NAME)
        for parameter in self.parameters().values():
            parameter.requires_grad_(True)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns what is trained, by name: all but embedding and output matrix."""
        fixed = ("embed_tokens", "lm_head")
        return {name: value for name, value in self.head.named_parameters() if name not in fixed}

    def loss(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """Returns the levels' mean loss, and the share of right tokens of the first.

        With a reduced vocabulary, what the target says outside of it is left out of the loss, and
        is wrong in the share.
        """
        token_ids = self.head.target_ids
        total, share = lesson.features.new_zeros(()), lesson.features.new_zeros(())
        for level, hidden in enumerate(self._levels(lesson, self._num_levels)):
            known = lesson.wanted & ahead(lesson.wanted, level + 1)
            if not bool(known.any()):
                break
            taught = ahead(lesson.logits, level + 1)[known]
            logits = self.head.known_logits(hidden[known])
            if level == 0:
                share = right_share(logits, ahead(lesson.said, 1)[known], token_ids)
            total = total + soft_loss(logits, taught, token_ids)
            if self.layers is None:
                features = ahead(lesson.features, level + 1)[known]
                distance = functional.smooth_l1_loss(hidden[known], features)
                total = total + _FEATURE_WEIGHT * distance
        return total / self._num_levels, share.detach()

    def agreement(self, lesson: Lesson, depth: int) -> Tensor:
        """Returns which of the chains' tokens are the target's."""
        levels = []
        for level, hidden in enumerate(self._levels(lesson, depth)):
            drafted = self.head.logits(hidden).argmax(-1)
            levels.append(drafted == ahead(lesson.said, level + 1))
        return torch.stack(levels, dim=-1)

    def save(self, directory: Path) -> None:
        """Writes what the worker loads."""
        save_eagle(self.head, directory, self._dtype)

    def _levels(self, lesson: Lesson, count: int) -> list[Tensor]:
        """Returns the head's output at each level; its chains have the sequence's tokens."""
        chain, features, outputs = Chain(), lesson.features, []
        positions = torch.arange(lesson.token_ids.shape[1], device=features.device)[None]
        for level in range(count):
            token_ids = ahead(lesson.token_ids, level + 1)
            features = self.head.run(token_ids, positions + level, features, chain=chain)
            outputs.append(features)
        return outputs


def new_head(
    target: Target, num_layers: int, seed: int, token_ids: list[int] | None = None
) -> EagleHead:
    """Returns an EAGLE-1 head with the target's sizes and random layers.

    Args:
        target: What it learns from.
        num_layers: Decoder layers.
        seed: Of the weights.
        token_ids: The tokens that it can draft; None: all.
    """
    config = LlamaConfig(
        hidden_size=target.hidden_size,
        intermediate_size=getattr(target.config, "intermediate_size", 4 * target.hidden_size),
        num_attention_heads=target.config.num_attention_heads,
        num_key_value_heads=target.config.num_key_value_heads,
        num_hidden_layers=num_layers,
        rms_norm_eps=getattr(target.config, "rms_norm_eps", 1e-6),
        max_position_embeddings=target.config.max_position_embeddings,
        vocab_size=target.model.vocab_size,
    )
    torch.manual_seed(seed)
    module = target.model.module
    output = module.get_output_embeddings().weight
    known = None if token_ids is None else torch.tensor(token_ids, device=output.device)
    head = EagleHead(
        config,
        FusedLayer(config, bias=True),
        module.get_input_embeddings().weight,
        output if known is None else output[known],
        vocab_size=target.model.vocab_size,
    )
    head.target_ids = known
    return head.to(device=target.model.device)
