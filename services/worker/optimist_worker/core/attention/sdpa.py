"""Attention over keys and values in blocks, row by row with PyTorch's own SDPA."""

import torch
from torch.nn import functional

from optimist_worker.core.attention.batch import AttentionBatch


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Lets every token of a batch attend to its row's keys.

    Args:
        query: `[1, num_heads, num_tokens, key_dim]`.
        keys: The layer's keys in the pool, `[num_places, num_kv_heads, key_dim]`.
        values: The layer's values in the pool, `[num_places, num_kv_heads, value_dim]`.
        batch: The rows; keys and values of their tokens are in the pool already.
        scale: Factor of the scores.
        window: A token sees this many positions, its own included; all if None.
        softcap: Scores become softcap * tanh(score / softcap); None leaves them.
        sinks: One score per head that takes its share of the softmax, `[num_heads]`, or None.

    Returns:
        `[1, num_tokens, num_heads, value_dim]`; 0 for padding.
    """
    outputs = []
    num_tokens = 0
    for span in batch.spans(window, query.dtype):
        num_tokens = span.query_end
        row_keys = _read(keys, span.keys)
        row_values = _read(values, span.keys)
        if softcap is not None or sinks is not None:
            row_query = query[:, :, span.query_start : num_tokens]
            output = _explicit(row_query, row_keys, row_values, span.bias, scale, softcap, sinks)
        elif span.bias is None:
            output = _one_token(query[0, :, span.query_start], row_keys, row_values, scale)
        else:
            output = functional.scaled_dot_product_attention(
                query[:, :, span.query_start : num_tokens],
                row_keys,
                row_values,
                attn_mask=span.bias,
                scale=scale,
                enable_gqa=query.shape[1] != keys.shape[1],
            ).transpose(1, 2)
        outputs.append(output)
    num_padded = query.shape[2] - num_tokens
    if num_padded:
        outputs.append(query.new_zeros((1, num_padded, query.shape[1], values.shape[2])))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def _read(pool: torch.Tensor, places: torch.Tensor | slice) -> torch.Tensor:
    """Returns a row's keys or values, `[1, num_kv_heads, num_keys, dim]`."""
    rows = pool[places] if isinstance(places, slice) else pool.index_select(0, places)
    return rows.transpose(0, 1)[None]


def _one_token(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attends with one token, `[num_heads, key_dim]`, to all keys; `[1, 1, num_heads, value_dim]`.

    The heads of a group are queries of one head: in bfloat16 that is several times as fast.
    """
    num_heads, key_dim = query.shape
    num_kv_heads = keys.shape[1]
    output = functional.scaled_dot_product_attention(
        query.reshape(1, num_kv_heads, num_heads // num_kv_heads, key_dim),
        keys,
        values,
        scale=scale,
    )
    return output.reshape(1, 1, num_heads, values.shape[3])


def _explicit(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attends with softcap or sinks, which SDPA lacks; `[1, num_queries, num_heads, value_dim]`."""
    groups = query.shape[1] // keys.shape[1]
    scores = query @ keys.repeat_interleave(groups, 1).transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1).expand(1, -1, scores.shape[2], 1)
        scores = torch.cat([scores, column.to(scores.dtype)], dim=-1)
    precise = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(-1, dtype=precise).to(query.dtype)
    output = weights[..., : keys.shape[2]] @ values.repeat_interleave(groups, 1)
    return output.transpose(1, 2)
