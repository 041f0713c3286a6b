"""Attention of a flat batch over keys and values in blocks, for any decoder of transformers.

On a CPU rows attend in groups: by PyTorch's own SDPA, in bfloat16 by oneDNN's batched products.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from optimist_worker.core.attention.kv import KVPool
from optimist_worker.core.operation import Operation


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that attend at once, padded to the same numbers of queries and keys."""

    queries: torch.Tensor | slice
    """Their tokens in the pass, `[num_rows * num_queries]`; padding repeats a row's last one."""
    keys: torch.Tensor | slice
    """Places in the pool, `[num_rows * num_keys]`; padding repeats a row's first one."""
    bias: torch.Tensor | None
    """Added to the scores, `[num_rows, num_queries, num_keys]`: 0, or -inf for what a token does
    not see. None for one row whose tokens see all its keys."""
    num_rows: int
    num_earlier: int
    """Keys that come before the tokens, at most."""


@dataclass(frozen=True, slots=True)
class _Row:
    queries: slice
    num_keys: int
    keys: torch.Tensor | slice
    """Places in the pool; a slice if the blocks are consecutive."""
    bias: torch.Tensor | None
    """`[num_queries, num_keys]`; None if all keys are visible."""
    dtype: torch.dtype
    device: torch.device

    @property
    def num_queries(self) -> int:
        return self.queries.stop - self.queries.start


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
    _groups: dict[tuple[int | None, torch.dtype], list[RowGroup]] = field(
        default_factory=dict, init=False, repr=False
    )

    def groups(self, window: int | None, dtype: torch.dtype) -> list[RowGroup]:
        """Returns all rows that have tokens, made once for all layers with the same window.

        It reads sizes to the host, which waits for the device if that is not the CPU.

        Args:
            window: A token sees this many positions, its own included; all if None.
            dtype: Number format of the biases.
        """
        groups = self._groups.get((window, dtype))
        if groups is None:
            groups = self._groups[window, dtype] = _group_rows(self._make_rows(window, dtype))
        return groups

    def _make_rows(self, window: int | None, dtype: torch.dtype) -> list[_Row]:
        starts: list[int] = self.query_starts.tolist()
        num_computed: list[int] = self.num_computed_tokens.tolist()
        device = self.block_tables.device
        tables = self.block_tables.cpu().numpy()
        rows = []
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
            keys = self._places(tables[row], first_key, num_keys)
            rows.append(_Row(slice(start, end), num_keys - first_key, keys, bias, dtype, device))
        return rows

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


_GROUPED = torch.bfloat16
"""In this number format SDPA is slow: rows attend by products, short ones together."""
_MOST_QUERIES = (8, 32)
"""Then rows of at most so many tokens attend together; longer ones alone."""
_MOST_PADDING = 2
"""Their keys are padded if that makes them at most so many times as many."""
_FEWEST_QUERIES, _QUERY_MULTIPLE, _KEY_MULTIPLE = 4, 32, 64
"""Then sizes are rounded up: oneDNN compiles a product for each shape that it meets."""


def _group_rows(rows: list[_Row]) -> list[RowGroup]:
    """Returns rows in groups; in wider dtypes rows attend together only if all have one token.

    The result of a row in a group of more may depend on the others in the last bit.
    """
    limits: tuple[int, ...] = _MOST_QUERIES
    if rows and rows[0].dtype != _GROUPED:
        limits = (1,) if all(row.num_queries == 1 for row in rows) else ()
    kinds: dict[int | None, list[_Row]] = {}
    for row in rows:
        kind = next((limit for limit in limits if row.num_queries <= limit), None)
        kinds.setdefault(kind, []).append(row)
    groups: list[RowGroup] = []
    for kind, members in kinds.items():
        lengths = [row.num_keys for row in members]
        if kind is not None and max(lengths) * len(members) <= _MOST_PADDING * sum(lengths):
            groups.append(_make_group(members))
        else:
            groups.extend(_make_group([row]) for row in members)
    return groups


def _make_group(rows: list[_Row]) -> RowGroup:
    num_queries = max(row.num_queries for row in rows)
    num_keys = max(row.num_keys for row in rows)
    num_earlier = max(row.num_keys - row.num_queries for row in rows)
    uses_products = _uses_products(rows[0].dtype, num_queries)
    if len(rows) == 1 and not uses_products:
        (row,) = rows
        bias = None if row.bias is None else row.bias[None]
        return RowGroup(row.queries, row.keys, bias, 1, num_earlier)
    if uses_products:
        num_keys = _round_up(num_keys, _KEY_MULTIPLE)
        if num_queries > _QUERY_MULTIPLE:
            num_queries = _round_up(num_queries, _QUERY_MULTIPLE)
        else:
            num_queries = max(_FEWEST_QUERIES, 1 << (num_queries - 1).bit_length())
    return _pad_rows(rows, num_queries, num_keys, num_earlier)


def _uses_products(dtype: torch.dtype, num_queries: int) -> bool:
    return dtype == _GROUPED and num_queries > 1


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _pad_rows(rows: list[_Row], num_queries: int, num_keys: int, num_earlier: int) -> RowGroup:
    """Pads rows to a group; what is nobody's in the pool may not be a number, so keys repeat."""
    shape = (len(rows), num_queries, num_keys)
    bias = torch.full(shape, float("-inf"), dtype=rows[0].dtype)
    queries = np.empty(shape[:2], np.int64)
    keys = np.empty((shape[0], shape[2]), np.int64)
    for index, row in enumerate(rows):
        first, end = row.queries.start, row.queries.stop
        own, seen, places = row.num_queries, row.num_keys, row.keys
        queries[index] = np.minimum(np.arange(first, first + num_queries), end - 1)
        if isinstance(places, slice):
            keys[index, :seen] = np.arange(places.start, places.stop)
        else:
            keys[index, :seen] = places.cpu().numpy()
        keys[index, seen:] = keys[index, 0]
        bias[index, :own, :seen] = 0.0 if row.bias is None else row.bias
        bias[index, own:] = bias[index, own - 1]
    device = rows[0].device
    chosen, seen_keys = (torch.from_numpy(each.reshape(-1)).to(device) for each in (queries, keys))
    first = rows[0].queries.start
    if num_queries == 1 and rows[-1].queries.stop - first == len(rows):
        return RowGroup(
            slice(first, first + len(rows)), seen_keys, bias.to(device), len(rows), num_earlier
        )
    return RowGroup(chosen, seen_keys, bias.to(device), len(rows), num_earlier)


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
    WRITE(key, value, keys, values, paged.slot_mapping)
    output = ATTEND(
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
    output = query.new_zeros((query.shape[2], query.shape[1], values.shape[2]))
    for group in batch.groups(window, query.dtype):
        tensors = _read(query[0], keys, values, group)
        attended = _attend(*tensors, group, scale, softcap, sinks)
        if len(attended) == query.shape[2] and isinstance(group.queries, slice):
            return attended[None]
        if isinstance(group.queries, slice):
            output[group.queries] = attended
        else:
            output.index_copy_(0, group.queries, attended)
    return output[None]


def _read(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: RowGroup
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the queries of a group, `[num_rows, num_heads, num_queries, key_dim]`, and its keys
    and values, `[num_rows, num_kv_heads, num_keys, dim]`.
    """
    rows = group.num_rows
    chosen = (
        query[:, group.queries]
        if isinstance(group.queries, slice)
        else query.index_select(1, group.queries)
    )
    row_keys, row_values = (
        pool[group.keys] if isinstance(group.keys, slice) else pool.index_select(0, group.keys)
        for pool in (keys, values)
    )
    return (
        chosen.reshape(len(query), rows, -1, query.shape[2]).transpose(0, 1),
        row_keys.view(rows, -1, *keys.shape[1:]).transpose(1, 2),
        row_values.view(rows, -1, *values.shape[1:]).transpose(1, 2),
    )


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: RowGroup,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attends with what `_read` returns; `[num_rows * num_queries, num_heads, value_dim]`.

    Long chunks go in tiles, each with the keys that come no later than its last token: what is
    masked is computed too. Heads that share keys are queries of one head, so that these are read
    once for all of them.
    """
    num_rows, num_heads, num_queries, _ = query.shape
    # SDPA has neither softcap nor sinks.
    uses_products = softcap is not None or sinks is not None
    if _uses_products(query.dtype, num_queries):
        uses_products = True
        keys, values = keys.contiguous(), values.contiguous()
    outputs = []
    for start in range(0, num_queries, _TILE):
        end = min(start + _TILE, num_queries)
        seen = min(_round_up(group.num_earlier + end, _KEY_MULTIPLE), keys.shape[2])
        tile = query[:, :, start:end].reshape(num_rows, keys.shape[1], -1, query.shape[3])
        seen_keys, seen_values = keys[:, :, :seen], values[:, :, :seen]
        bias = None if group.bias is None else group.bias[:, None, start:end, :seen]
        if uses_products:
            output = _multiply(
                tile, seen_keys, seen_values, bias, end - start, scale, softcap, sinks
            )
        else:
            if bias is not None and num_queries > 1:
                bias = bias.repeat(1, 1, num_heads // keys.shape[1], 1)
            output = functional.scaled_dot_product_attention(
                tile, seen_keys, seen_values, attn_mask=bias, scale=scale
            )
        output = output.reshape(num_rows, num_heads, end - start, -1)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


_TILE = 128
"""Queries."""


def _multiply(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    num_queries: int,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attends by batched products, which round scores to the inputs' dtype, as "eager" attention
    of transformers does.

    Args:
        query: `[num_rows, num_kv_heads, num_groups * num_queries, key_dim]`.
        keys: `[num_rows, num_kv_heads, num_keys, key_dim]`.
        values: `[num_rows, num_kv_heads, num_keys, value_dim]`.
        bias: `[num_rows, 1, num_queries, num_keys]` or None.
        num_queries: Tokens of each row.
        scale: Factor of the scores.
        softcap: See `attend_rows`.
        sinks: See `attend_rows`.

    Returns:
        `[num_rows, num_kv_heads, num_groups * num_queries, value_dim]`.
    """
    products = torch.matmul(query * scale, keys.transpose(2, 3))
    scores = products.reshape(len(query), -1, num_queries, keys.shape[2])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores += bias
    if sinks is not None:
        column = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1).to(scores.dtype)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(-1)[..., : keys.shape[2]].reshape(products.shape)
    return torch.matmul(weights, values)


_ROOM = "optimist_worker.core.attention"
WRITE = Operation("kv_write", _write, f"{_ROOM}.kv_write:write")
ATTEND = Operation(
    "attention",
    attend_rows,
    f"{_ROOM}.launch:attend",
    "optimist_worker.cpu_kernels.launch:attend",
)
