"""Attention over keys and values in blocks, row by row with PyTorch's own SDPA."""

import torch
from torch.nn import functional

from optimist_worker.core.attention_batch import AttentionBatch


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
        row_query = query[:, :, span.query_start : span.query_end]
        row_keys = _read(keys, span.keys)
        row_values = _read(values, span.keys)
        if softcap is not None or sinks is not None:
            output = _explicit(row_query, row_keys, row_values, span.bias, scale, softcap, sinks)
        else:
            output = _plain(row_query, row_keys, row_values, span.bias, scale)
        outputs.append(output.transpose(1, 2))
        num_tokens = span.query_end
    num_padded = query.shape[2] - num_tokens
    if num_padded:
        outputs.append(query.new_zeros((1, num_padded, query.shape[1], values.shape[2])))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def _read(pool: torch.Tensor, places: torch.Tensor | slice) -> torch.Tensor:
    """Returns a row's keys or values, `[1, num_kv_heads, num_keys, dim]`."""
    rows = pool[places] if isinstance(places, slice) else pool.index_select(0, places)
    return rows.transpose(0, 1)[None]


def _plain(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attends with SDPA, `[1, num_heads, num_queries, value_dim]`."""
    num_heads, num_kv_heads = query.shape[1], keys.shape[1]
    if query.shape[2] == 1 and bias is None:
        # The heads of a group as queries of one head: in bfloat16 several times as fast.
        query = query.reshape(1, num_kv_heads, num_heads // num_kv_heads, query.shape[3])
        output = functional.scaled_dot_product_attention(query, keys, values, scale=scale)
        return output.reshape(1, num_heads, 1, values.shape[3])
    return functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=bias, scale=scale, enable_gqa=num_heads != num_kv_heads
    )


def _explicit(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attends with softcap or sinks, which SDPA lacks; `[1, num_heads, num_queries, value_dim]`."""
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
    return weights[..., : keys.shape[2]] @ values.repeat_interleave(groups, 1)
