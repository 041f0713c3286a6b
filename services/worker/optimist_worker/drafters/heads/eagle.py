"""EAGLE heads: a layer or so that goes on from the target's features, token by token.

EAGLE-1 and -2: Li et al., arXiv 2401.15077 and 2406.16858; EAGLE-3: arXiv 2503.01840.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from optimist_worker.core.attention.kv import LayerSpec
from optimist_worker.core.attention.paged_attention import NAME, AttentionBatch


class FusedLayer(nn.Module):
    """First layer of EAGLE-1 and -2: embedding and feature made one, without a norm before it."""

    def __init__(self, config: LlamaConfig, *, bias: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        layer: Any = LlamaDecoderLayer(config, 0)
        layer.input_layernorm = nn.Identity()
        self.layer = layer

    def forward(
        self, embeddings: torch.Tensor, features: torch.Tensor, **attention: Any
    ) -> torch.Tensor:
        """Returns `[batch, T, hidden_size]` of embeddings and features of that shape."""
        output: torch.Tensor = self.layer(
            self.fc(torch.cat((embeddings, features), dim=-1)), **attention
        )
        return output


class MidLayer(nn.Module):
    """First layer of EAGLE-3: attends with embedding and feature side by side, each normalised."""

    def __init__(self, config: LlamaConfig, target_size: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.hidden_size = size
        self.norm_before_residual = bool(getattr(config, "norm_before_residual", False))
        self.fc = nn.Linear(target_size, size, bias=False)
        self.hidden_norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.input_layernorm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.self_attn = LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            plain = getattr(self.self_attn, name)
            bias = plain.bias is not None
            setattr(self.self_attn, name, nn.Linear(2 * size, plain.out_features, bias=bias))
        self.post_attention_layernorm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.mlp = LlamaMLP(config)  # type: ignore[no-untyped-call]

    def forward(
        self, embeddings: torch.Tensor, features: torch.Tensor, **attention: Any
    ) -> torch.Tensor:
        """Returns `[batch, T, hidden_size]`.

        Features as wide as the target's layers together are projected first; those of the head's
        own, as wide as itself, are taken as they are.
        """
        hidden = features if features.shape[-1] == self.hidden_size else self.fc(features)
        normalised = self.hidden_norm(hidden)
        residual = normalised if self.norm_before_residual else hidden
        both = torch.cat((self.input_layernorm(embeddings), normalised), dim=-1)
        attended, _ = self.self_attn(hidden_states=both, **attention)
        hidden = residual + attended
        output: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class EagleHead(nn.Module):
    """Drafts the token after next from a feature of the target and the next token.

    The input at position p is the feature of position p with the token at p + 1. The output
    approximates the feature of p + 1: its logits say the token at p + 2, and with that token it is
    the input at position p + 1 while the target has not been there.
    """

    target_ids: torch.Tensor | None

    def __init__(
        self,
        config: LlamaConfig,
        first: FusedLayer | MidLayer,
        embed_tokens: torch.Tensor,
        lm_head: torch.Tensor,
        *,
        norm: LlamaRMSNorm | None = None,
        target_layers: tuple[int, ...] | None = None,
        target_ids: torch.Tensor | None = None,
        vocab_size: int,
    ) -> None:
        """Puts a head together.

        Args:
            config: Of the decoder layers; `num_hidden_layers` counts the first.
            first: The layer that takes embeddings and features.
            embed_tokens: `[vocab_size, hidden_size]`, often the target's.
            lm_head: `[vocab_size or draft_vocab_size, hidden_size]`, often the target's.
            norm: Before `lm_head`; none if None.
            target_layers: Which of the target's decoder layers have the features as their output;
                None: the feature is the last hidden state, after the final norm.
            target_ids: The target's token of each row of `lm_head`, int64; None: all, in order.
            vocab_size: Of the target.
        """
        super().__init__()
        self.config, self.vocab_size, self.target_layers = config, vocab_size, target_layers
        self.first = first
        self.further = nn.ModuleList(
            LlamaDecoderLayer(config, number) for number in range(1, config.num_hidden_layers)
        )
        self.norm = nn.Identity() if norm is None else norm
        self.embed_tokens = nn.Parameter(embed_tokens, requires_grad=False)
        self.lm_head = nn.Parameter(lm_head, requires_grad=False)
        self.register_buffer("target_ids", target_ids, persistent=False)
        # Not moved to a dtype with the weights: its frequencies stay in float32.
        self.rotary = LlamaRotaryEmbedding(config)
        self.set_attn_implementation(NAME)

    @property
    def layers(self) -> list[LayerSpec]:
        """What each layer keeps per token, for a pool of its own."""
        config: Any = self.config
        spec = LayerSpec(config.num_key_value_heads, config.head_dim, config.head_dim)
        return [spec] * config.num_hidden_layers

    def set_attn_implementation(self, name: str) -> None:
        """Sets by which of transformers' attention functions the layers attend."""
        self.config._attn_implementation = name

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        features: torch.Tensor,
        attention: AttentionBatch,
    ) -> torch.Tensor:
        """Runs a flat batch over KV blocks; returns the next features, `[T, hidden_size]`.

        Args:
            token_ids: Tokens at the positions after, `[T]`.
            positions: `[T]`.
            features: `[T, feature_size]` of the target, or `[T, hidden_size]` of earlier calls.
            attention: Where the batch's keys and values lie.
        """
        return self.run(token_ids[None], positions[None], features[None], paged=attention)[0]

    def run(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        features: torch.Tensor,
        **attention: Any,
    ) -> torch.Tensor:
        """Does what `forward` does for `[batch, T]` with other keywords for the attention."""
        embeddings = functional.embedding(token_ids, self.embed_tokens)
        rotation = self.rotary(embeddings, positions)
        hidden: torch.Tensor = self.first(
            embeddings, features, position_embeddings=rotation, **attention
        )
        for layer in self.further:
            hidden = layer(hidden, position_embeddings=rotation, **attention)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns `[N, vocab_size]` over the target's tokens, -inf for those it does not know."""
        known = self.norm(hidden) @ self.lm_head.T
        if self.target_ids is None:
            return known
        logits = known.new_full((*known.shape[:-1], self.vocab_size), float("-inf"))
        return logits.index_copy_(-1, self.target_ids, known)
