"""Attention of a flat batch over keys and values in blocks, for any decoder of transformers.

On a CPU it goes row by row with PyTorch's own SDPA.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from optimist_worker.core.attention.kv import KVPool


@dataclass(frozen=True, slots=True)
class Span:
    """One row as the host sees it: where its queries lie, and what they can see."""

    query_start: int
    query_end: int
    keys: torch.Tensor | slice
    """Places in the pool of the keys that any query sees; a slice if the blocks are consecutive."""
    bias: torch.Tensor | None
    """Added to the scores, `[num_queries, num_keys]`: 0 or -inf. None if all keys are visible."""


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows of one token each, padded to the same number of keys."""

    queries: torch.Tensor
    """Their tokens in the pass, `[num_rows]`."""
    keys: torch.Tensor
    """Places in the pool, `[num_rows * num_keys]`."""
    bias: torch.Tensor
    """Added to the scores, `[num_rows, 1, 1, num_keys]`: 0, or -inf for padding."""


@dataclass(slots=True)
class AttentionBatch:
    """Rows of any kind and length, one after the other: chunks of prompts, chains, trees.

    The keys of a row are counted by place: key n is token n of the row, and n <= p are the keys a
    token at place p sees. A draft of a tree sees the keys before the tree and its own ancestors.
    Sliding windows are measured in positions, which differ from places within a tree.
    """

    pool: KVPool
    slot_mapping: torch.Tensor
    """Place in the pool of every token of the pass, int64 `[num_tokens]`."""
    query_starts: torch.Tensor
    """First token of every row, and the end of the last one, int64 `[num_rows + 1]`.

    Tokens from there on are padding; a row without tokens is padding as well.
    """
    num_computed_tokens: torch.Tensor
    """Keys of every row from earlier passes, at positions as at places; int64 `[num_rows]`."""
    tree_starts: torch.Tensor
    """Place of every row's first draft, int64 `[num_rows]`."""
    positions: torch.Tensor
    """Position of every token: its place, but in a tree by its depth; int64 `[num_tokens]`."""
    ancestors: torch.Tensor | None
    """Bit i is set if node i of the row's tree is the token or above it, int64 `[num_tokens]`.

    0 for tokens that are in no tree. None if there are no trees in the pass.
    """
    block_tables: torch.Tensor
    """Blocks of every row in order, int32 `[num_rows, max_num_blocks]`."""
    max_num_queries: int
    """No row has more tokens in the pass; known to the host."""
    max_num_keys: int
    """No row has more keys, its tokens in the pass included; known to the host."""
    _spans: dict[tuple[int | None, torch.dtype], list[Span]] = field(
        default_factory=dict, init=False, repr=False
    )
    _decoded: dict[tuple[int | None, torch.dtype], DecodedRows | None] = field(
        default_factory=dict, init=False, repr=False
    )

    def spans(self, window: int | None, dtype: torch.dtype) -> list[Span]:
        """Returns the rows that have tokens, made once for all layers with the same window.

        It reads sizes to the host, which waits for the device if that is not the CPU.

        Args:
            window: A token sees this many positions, its own included; all if None.
            dtype: Number format of the biases.
        """
        spans = self._spans.get((window, dtype))
        if spans is None:
            spans = self._make_spans(window, dtype)
            self._spans[window, dtype] = spans
        return spans

    def decoded_rows(self, window: int | None, dtype: torch.dtype) -> DecodedRows | None:
        """Returns the rows of one token each as one rectangle; None if their lengths differ much.

        Made once for all layers with the same window; the arguments are those of `spans`.
        """
        if (window, dtype) not in self._decoded:
            device = self.block_tables.device
            self._decoded[window, dtype] = _pad_rows(self.spans(window, dtype), dtype, device)
        return self._decoded[window, dtype]

    def _make_spans(self, window: int | None, dtype: torch.dtype) -> list[Span]:
        starts: list[int] = self.query_starts.tolist()
        num_computed: list[int] = self.num_computed_tokens.tolist()
        tables = self.block_tables.cpu().numpy()
        spans = []
        for row, (start, end) in enumerate(itertools.pairwise(starts)):
            if start == end:
                continue
            has_tree = self.ancestors is not None and bool(self.ancestors[start:end].any())
            first_key = 0
            if window is not None:
                lowest = int(self.positions[start:end].min()) if has_tree else num_computed[row]
                first_key = max(0, lowest - window + 1)
            num_keys = num_computed[row] + end - start
            bias = None
            if has_tree or end - start > 1:
                hidden = self._hidden(row, start, end, num_computed[row], first_key, window)
                bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
                bias.masked_fill_(hidden, float("-inf"))
            spans.append(Span(start, end, self._places(tables[row], first_key, num_keys), bias))
        return spans

    def _hidden(
        self,
        row: int,
        start: int,
        end: int,
        num_computed: int,
        first_key: int,
        window: int | None,
    ) -> torch.Tensor:
        """Returns which keys, from `first_key` on, a token must not see, `[num_queries, keys]`."""
        device = self.positions.device
        num_keys = num_computed + end - start
        keys = torch.arange(first_key, num_keys, device=device)
        places = torch.arange(num_computed, num_keys, device=device)[:, None]
        hidden = keys > places
        if self.ancestors is not None:
            ancestors = self.ancestors[start:end, None]
            node = keys - self.tree_starts[row]
            is_above = (ancestors >> node.clamp(0, 63)) & 1 == 1
            hidden = torch.where(ancestors != 0, (node >= 0) & ~is_above | hidden, hidden)
        if window is not None:
            positions = self.positions[start:end]
            key_positions = torch.cat([keys[: num_computed - first_key], positions])
            hidden |= key_positions[-len(keys) :] <= positions[:, None] - window
        return hidden

    def _places(
        self, table: npt.NDArray[np.int32], first_key: int, num_keys: int
    ) -> torch.Tensor | slice:
        size = self.pool.block_size
        first_block = first_key // size
        blocks = table[first_block : -(-num_keys // size)].astype(np.int64)
        begin, end = first_key - first_block * size, num_keys - first_block * size
        first = int(blocks[0])
        if int(blocks[-1]) - first == len(blocks) - 1 and bool((np.diff(blocks) == 1).all()):
            return slice(first * size + begin, first * size + end)
        places = (blocks[:, None] * size + np.arange(size)).reshape(-1)[begin:end]
        return torch.from_numpy(places).to(self.block_tables.device)


def _pad_rows(spans: list[Span], dtype: torch.dtype, device: torch.device) -> DecodedRows | None:
    spans = [span for span in spans if span.bias is None]
    if len(spans) < 2:
        return None
    places = [
        torch.arange(span.keys.start, span.keys.stop, device=device)
        if isinstance(span.keys, slice)
        else span.keys
        for span in spans
    ]
    lengths = [len(each) for each in places]
    if max(lengths) * len(lengths) > _MOST_PADDING * sum(lengths):
        return None
    keys = torch.nn.utils.rnn.pad_sequence(places, batch_first=True)
    index = torch.arange(keys.shape[1], device=device)
    is_padding = index >= torch.tensor(lengths, device=device)[:, None]
    # What is nobody's may not be a number, and stays that times 0.
    keys = torch.where(is_padding, keys[:, :1], keys)
    bias = torch.zeros(keys.shape, dtype=dtype, device=device)
    bias.masked_fill_(is_padding, float("-inf"))
    queries = torch.tensor([span.query_start for span in spans], device=device)
    return DecodedRows(queries, keys.flatten(), bias[:, None, None])


_MOST_PADDING = 2
"""Rows are padded to the longest one if that makes them at most so many times as long together."""

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
    write, attend = _implementation(query.device, query.dtype)
    write(key, value, keys, values, paged.slot_mapping)
    output = attend(
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


@cache
def _implementation(
    device: torch.device, dtype: torch.dtype
) -> tuple[Callable[..., None], Callable[..., torch.Tensor]]:
    """Returns what writes keys and values and what attends: Triton kernels where they can run.

    They need tensor cores of Ampere or later, and have no float64.
    """
    if (
        device.type == "cuda"
        and dtype != torch.float64
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    ):
        # Triton is not installed with a worker for the CPU.
        from optimist_worker.core.attention import kv_write
        from optimist_worker.core.attention import launch as attention_launch

        return kv_write.write, attention_launch.attend
    return _write, attend_rows


def _write(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    keys.index_copy_(0, slot_mapping, key[0].transpose(0, 1))
    values.index_copy_(0, slot_mapping, value[0].transpose(0, 1))


def attend_rows(
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
    decoded = None
    if softcap is None and sinks is None:
        decoded = batch.decoded_rows(window, query.dtype)
    if decoded is not None and len(decoded.queries) == query.shape[2]:
        return _decode(query, keys, values, decoded, scale)
    output = query.new_zeros((1, query.shape[2], query.shape[1], values.shape[2]))
    if decoded is not None:
        row_query = query.index_select(2, decoded.queries)
        output[:, decoded.queries] = _decode(row_query, keys, values, decoded, scale)
    for span in batch.spans(window, query.dtype):
        if span.bias is None and decoded is not None:
            continue
        row_query = query[:, :, span.query_start : span.query_end]
        row_keys, row_values = _read(keys, span.keys), _read(values, span.keys)
        if softcap is not None or sinks is not None:
            row = _explicit(row_query, row_keys, row_values, span.bias, scale, softcap, sinks)
        else:
            row = _attend_row(row_query, row_keys, row_values, span.bias, scale)
        if row.shape[1] == query.shape[2]:
            return row
        output[:, span.query_start : span.query_end] = row
    return output


def _read(pool: torch.Tensor, places: torch.Tensor | slice) -> torch.Tensor:
    """Returns a row's keys or values, `[1, num_kv_heads, num_keys, dim]`."""
    rows = pool[places] if isinstance(places, slice) else pool.index_select(0, places)
    return rows.transpose(0, 1)[None]


def _attend_row(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attends with a row's tokens, `[1, num_heads, num_queries, key_dim]`, as `attend_rows` does.

    Long chunks go in tiles, each with the keys that come no later than its last token: what is
    masked is computed too.
    """
    num_queries, num_keys = query.shape[2], keys.shape[2]
    outputs = []
    for start in range(0, num_queries, _TILE):
        end = min(start + _TILE, num_queries)
        seen = num_keys - num_queries + end
        attend = (
            _attend_by_products if _uses_products(query.dtype, end - start) else _attend_by_sdpa
        )
        output = attend(
            query[:, :, start:end],
            keys[:, :, :seen],
            values[:, :, :seen],
            None if bias is None else bias[start:end, :seen],
            scale,
        )
        outputs.append(output.transpose(1, 2))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


_TILE = 128
"""Queries."""
_FEWEST_FOR_PRODUCTS = 24
"""Queries of a tile for which two products are faster than SDPA in bfloat16."""


def _uses_products(dtype: torch.dtype, num_queries: int) -> bool:
    return dtype == torch.bfloat16 and num_queries >= _FEWEST_FOR_PRODUCTS


def _attend_by_sdpa(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attends as `_attend_row` does, a tile; `[1, num_heads, num_queries, value_dim]`.

    The heads of a group are queries of one head: then keys are read once for all of them.
    """
    _, num_heads, num_queries, key_dim = query.shape
    num_kv_heads = keys.shape[1]
    groups = num_heads // num_kv_heads
    output = functional.scaled_dot_product_attention(
        query.reshape(1, num_kv_heads, groups * num_queries, key_dim),
        keys,
        values,
        attn_mask=None if bias is None else bias.repeat(groups, 1),
        scale=scale,
    )
    return output.reshape(1, num_heads, num_queries, values.shape[3])


def _attend_by_products(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """The same by oneDNN's batched products, which round scores to the inputs' dtype.

    So do transformers' own ("eager") attention and its softmax.
    """
    _, num_heads, num_queries, key_dim = query.shape
    num_kv_heads = keys.shape[1]
    grouped = (query * scale).reshape(num_kv_heads, -1, key_dim)
    scores = torch.bmm(grouped, keys[0].transpose(1, 2)).view(num_heads, num_queries, -1)
    if bias is not None:
        scores += bias
    weights = scores.softmax(-1).view(num_kv_heads, -1, keys.shape[2])
    return torch.bmm(weights, values[0]).view(1, num_heads, num_queries, -1)


def _decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: DecodedRows,
    scale: float,
) -> torch.Tensor:
    """Attends with one token per row, `[1, num_heads, num_rows, key_dim]`, as `attend_rows` does.

    One product for all rows: beside their keys, the calls per row would cost twice as much.
    """
    num_rows, num_kv_heads = len(rows.queries), keys.shape[1]
    row_keys, row_values = (
        pool.index_select(0, rows.keys).view(num_rows, -1, num_kv_heads, pool.shape[2])
        for pool in (keys, values)
    )
    output = functional.scaled_dot_product_attention(
        query[0].transpose(0, 1).reshape(num_rows, num_kv_heads, -1, query.shape[3]),
        row_keys.transpose(1, 2),
        row_values.transpose(1, 2),
        attn_mask=rows.bias,
        scale=scale,
    )
    return output.reshape(1, num_rows, -1, values.shape[2])


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
