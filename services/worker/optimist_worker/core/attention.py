"""Attention of a flat batch over keys and values in blocks, for any decoder of transformers."""

from typing import Any

import torch
from torch.nn import functional

from optimist_worker.core.batch import AttentionBatch, Span, first_key

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
        sliding_window: A query sees this many keys, itself included; all if None.
        softcap: Scores become softcap * tanh(score / softcap) (Gemma 2).
        s_aux: Attention sinks, one score per head that takes its share of the softmax (gpt-oss).

    Returns:
        `[1, num_tokens, num_heads, value_dim]`, and None in place of attention weights.
    """
    layer: int = module.layer_idx  # type: ignore[assignment]
    keys, values = paged.pool.keys[layer], paged.pool.values[layer]
    keys.index_copy_(0, paged.slot_mapping, key[0].transpose(0, 1))
    values.index_copy_(0, paged.slot_mapping, value[0].transpose(0, 1))
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    explicit = softcap is not None or s_aux is not None
    outputs = []
    for number, span in enumerate(paged.spans):
        first = first_key(span, sliding_window)
        row_keys = _read(keys, span, first)
        row_values = _read(values, span, first)
        row_query = query[:, :, span.query_start : span.query_start + span.num_queries]
        bias = None
        if span.num_queries > 1:
            bias = paged.bias(number, sliding_window, query.dtype)
        if explicit:
            output = _explicit(row_query, row_keys, row_values, bias, factor, softcap, s_aux)
        else:
            output = functional.scaled_dot_product_attention(
                row_query,
                row_keys,
                row_values,
                attn_mask=bias,
                scale=factor,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        outputs.append(output.transpose(1, 2))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1), None


def _read(pool: torch.Tensor, span: Span, first: int) -> torch.Tensor:
    """Returns the span's keys or values from `first` on, `[1, num_kv_heads, num_keys, dim]`."""
    indices = span.kv_indices
    if isinstance(indices, slice):
        rows = pool[indices.start + first : indices.stop]
    else:
        rows = pool.index_select(0, indices[first:])
    return rows.transpose(0, 1)[None]


def _explicit(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    factor: float,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> torch.Tensor:
    """Attends with softcap or sinks, which SDPA lacks; `[1, num_heads, num_queries, value_dim]`."""
    groups = query.shape[1] // keys.shape[1]
    scores = query @ keys.repeat_interleave(groups, 1).transpose(2, 3) * factor
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if s_aux is not None:
        sinks = s_aux.reshape(1, -1, 1, 1).expand(1, -1, scores.shape[2], 1)
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    precise = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(-1, dtype=precise).to(query.dtype)
    return weights[..., : keys.shape[2]] @ values.repeat_interleave(groups, 1)
