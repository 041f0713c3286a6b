"""Attention of a flat batch over keys and values in blocks, for any decoder of transformers."""

from typing import Any

import torch

from optimist_worker.core import sdpa
from optimist_worker.core.attention_batch import AttentionBatch

NAME = "optimist_paged"
"""Under which the function is registered with transformers' AttentionInterface."""


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: AttentionBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Writes the batch's keys and values to the pool, then lets every row attend to its own.

    Args:
        module: The attention layer; its `layer_idx` names the layer of the pool.
        query: `[1, num_heads, num_tokens, key_dim]`.
        key: `[1, num_kv_heads, num_tokens, key_dim]`.
        value: `[1, num_kv_heads, num_tokens, value_dim]`.
        attention_mask: None; masks follow from the batch.
        paged: The batch, as the model's caller passed it.
        scaling: Factor of the scores; 1 / sqrt(key_dim) if None.
        sliding_window: A token sees this many positions, its own included; all if None.
        softcap: Scores become softcap * tanh(score / softcap) (Gemma 2).
        s_aux: Attention sinks, one score per head that takes its share of the softmax (gpt-oss).

    Returns:
        `[1, num_tokens, num_heads, value_dim]`, and None in place of attention weights.
    """
    layer: int = module.layer_idx  # type: ignore[assignment]
    keys, values = paged.pool.keys[layer], paged.pool.values[layer]
    keys.index_copy_(0, paged.slot_mapping, key[0].transpose(0, 1))
    values.index_copy_(0, paged.slot_mapping, value[0].transpose(0, 1))
    output = sdpa.attend(
        query,
        keys,
        values,
        paged,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return output, None
