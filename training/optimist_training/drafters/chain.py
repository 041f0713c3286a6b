"""Attention of chains that start at every position of a sequence at once.

Level 0 is the head's causal pass over the target's features. At level j the query at index p
stands for position p + j of the chain that starts at p: it sees the keys of level 0 up to p and
those of its own chain, as in the training-time test of EAGLE-3 (arXiv 2503.01840).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

NAME = "optimist_chain"


class Chain:
    """Keys and values of the levels so far, by layer."""

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
        `[batch, length, num_heads, dim]`, and None in place of attention weights.
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
