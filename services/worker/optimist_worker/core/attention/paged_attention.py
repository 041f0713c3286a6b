"""Keys and values in blocks, and attention of a flat batch to them, for any decoder.

Kernels compute it where there are any. Plain PyTorch is what they are compared with, and computes
where there is none: a row at a time, by products in float32 or wider.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch

from optimist_worker.core.operation import Operation

_MOST_QUERIES = 128
"""Of a tile: scores of longer chunks of prompts take much memory, mostly for what is hidden."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one attention layer keeps per token."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


class KVPool:
    """Keys and values of all layers; token `i` of block `b` lies at index `b * block_size + i`.

    There is one block more than can be given away, `trash_block`: padding is written there.
    """

    def __init__(
        self,
        layers: list[LayerSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.trash_block = num_blocks
        size = (num_blocks + 1) * block_size
        shapes = [(spec.num_kv_heads, spec.key_dim) for spec in layers]
        shapes += [(spec.num_kv_heads, spec.value_dim) for spec in layers]
        # A row reads only what was written for it, so the memory need not be cleared.
        memories = {
            shape: torch.empty((number, size, *shape), dtype=dtype, device=device)
            for shape, number in Counter(shapes).items()
        }
        self.memory = list(memories.values())
        """`[layers, indices, heads, dim]` of all layers' keys and values that are alike."""
        parts = {shape: iter(memory.unbind()) for shape, memory in memories.items()}
        tensors = [next(parts[shape]) for shape in shapes]
        self.keys, self.values = tensors[: len(layers)], tensors[len(layers) :]

    @cached_property
    def addresses(self) -> list[tuple[int, int]]:
        """Of the keys and values of each layer, for kernels of the CPU."""
        pairs = zip(self.keys, self.values, strict=True)
        return [(keys.data_ptr(), values.data_ptr()) for keys, values in pairs]

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Moves keys and values of all layers from indices to others, `[num_tokens]` each.

        All are read before any is written, by two operations for all that have the same shape.
        """
        for memory in self.memory:
            memory.index_copy_(1, target, memory.index_select(1, source))


def block_bytes(layers: list[LayerSpec], block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block in all layers, in bytes."""
    numbers = sum(spec.num_kv_heads * (spec.key_dim + spec.value_dim) for spec in layers)
    return block_size * numbers * dtype.itemsize


class Tile(NamedTuple):
    """Consecutive tokens of a row, which attend at once."""

    queries: slice
    """Tokens of the pass."""
    keys: torch.Tensor
    """Indices in the pool of all keys that one of them may see, int64 `[num_keys]`."""
    hidden: torch.Tensor
    """Which of these a token does not see, bool `[num_queries, num_keys]`."""


@dataclass(slots=True)
class AttentionBatch:
    """Rows of any kind and length, one after the other: chunks of prompts, chains, trees.

    The keys of a row are counted by index: key n is token n of the row, and n <= p are the keys a
    token at index p sees. A draft of a tree sees the keys before the tree and its own ancestors.
    Sliding windows are measured in positions, which differ from indices within a tree.
    """

    pool: KVPool
    slot_mapping: torch.Tensor
    """Index in the pool of every token of the pass, int64 `[num_tokens]`."""
    query_starts: torch.Tensor
    """First token of every row, and the end of the last one, int64 `[num_rows + 1]`.

    Tokens from there on are padding; a row without tokens is padding as well.
    """
    num_computed_tokens: torch.Tensor
    """Keys of every row from earlier passes, at positions as at indices; int64 `[num_rows]`."""
    tree_starts: torch.Tensor
    """Index of every row's first draft, int64 `[num_rows]`."""
    positions: torch.Tensor
    """Position of every token: its index, but in a tree by its depth; int64 `[num_tokens]`."""
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
    addresses: tuple[int, ...] | None = field(default=None, init=False, repr=False)
    """What the CPU kernels take of it, kept for all layers."""
    _tiles: dict[int | None, list[Tile]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of_rows(
        cls, pool: KVPool, starts: Sequence[int], ends: Sequence[int], tables: torch.Tensor
    ) -> "AttentionBatch":
        """Returns the tokens at indices `starts` to `ends` of rows with the blocks of `tables`."""
        device, size = tables.device, pool.block_size
        spans = [torch.arange(*span, device=device) for span in zip(starts, ends, strict=True)]
        lengths = [len(span) for span in spans]
        blocks = [row[span // size] for row, span in zip(tables.long(), spans, strict=True)]
        positions = torch.cat(spans)
        return cls(
            pool=pool,
            slot_mapping=torch.cat(blocks) * size + positions % size,
            query_starts=torch.tensor([0, *itertools.accumulate(lengths)], device=device),
            num_computed_tokens=torch.tensor(starts, device=device),
            tree_starts=torch.tensor(ends, device=device),
            positions=positions,
            ancestors=None,
            block_tables=tables.int(),
            max_num_queries=max(lengths),
            max_num_keys=max(ends),
        )

    @classmethod
    def of_row(cls, pool: KVPool, start: int, end: int) -> "AttentionBatch":
        """Returns the tokens at indices `start` to `end` of one row, which holds the whole pool."""
        blocks = torch.arange(pool.num_blocks, device=pool.keys[0].device)
        return cls.of_rows(pool, [start], [end], blocks[None])

    def tiles(self, window: int | None) -> list[Tile]:
        """Returns all tokens but padding in tiles, made once for all layers with the same window.

        It reads sizes to the host, which waits for the device if that is not the CPU.
        """
        if window not in self._tiles:
            self._tiles[window] = list(self._make_tiles(window))
        return self._tiles[window]

    def _make_tiles(self, window: int | None) -> Iterator[Tile]:
        starts, num_computed = self.query_starts.tolist(), self.num_computed_tokens.tolist()
        size = self.pool.block_size
        for row, (row_start, row_end) in enumerate(itertools.pairwise(starts)):
            for start in range(row_start, row_end, _MOST_QUERIES):
                queries = slice(start, min(start + _MOST_QUERIES, row_end))
                positions = self.positions[queries]
                keys = torch.arange(
                    0 if window is None else max(0, int(positions.min()) - window + 1),
                    num_computed[row] + queries.stop - row_start,
                    device=positions.device,
                )
                indices = self.block_tables[row, keys // size] * size + keys % size
                hidden = keys > keys[start - queries.stop :, None]
                if self.ancestors is not None:
                    ancestors = self.ancestors[queries, None]
                    node = keys - self.tree_starts[row]
                    is_above = (ancestors >> node.clamp(0, 63)) & 1 == 1
                    hidden |= (ancestors != 0) & (node >= 0) & ~is_above
                if window is not None:
                    # In a tree it differs from the index.
                    new = self.positions[row_start : queries.stop]
                    earlier = keys[: max(0, len(keys) - len(new))]
                    key_positions = torch.cat([earlier, new[-len(keys) :]])
                    hidden |= key_positions <= positions[:, None] - window
                yield Tile(queries, indices, hidden)


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

    Masks follow from the batch, `paged`; the layer of the pool is the module's `layer_idx`. The
    others are as in `attend_rows`, and `s_aux` the sinks of gpt-oss. Heads are `[1, num_heads or
    num_kv_heads, num_tokens, dim]`; returns `[1, num_tokens, num_heads, value_dim]` and None in
    place of attention weights.
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
    """Lets every token of a batch attend to its row's keys, which are in the pool already.

    The query is `[1, num_heads, num_tokens, key_dim]`, keys and values the layer's in the pool,
    `[num_indices, num_kv_heads, dim]`. A token sees `window` positions, its own included; all if
    None. With a softcap scores become softcap * tanh(score / softcap) (Gemma 2). The sinks are one
    score per head that takes its share of the softmax, `[num_heads]`. Returns `[1, num_tokens,
    num_heads, value_dim]`; 0 for padding.
    """
    output = query.new_zeros((query.shape[2], query.shape[1], values.shape[2]))
    wide = torch.promote_types(query.dtype, torch.float32)
    for tile in batch.tiles(window):
        tokens = query[0, :, tile.queries].to(wide) * scale
        num_heads, num_queries, _ = tokens.shape
        # Heads that share keys are queries of one head.
        tokens = tokens.reshape(keys.shape[1], -1, keys.shape[2])
        tile_keys, tile_values = (
            memory.index_select(0, tile.keys).to(wide).transpose(0, 1) for memory in (keys, values)
        )
        scores = (tokens @ tile_keys.transpose(1, 2)).view(num_heads, num_queries, -1)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores.masked_fill_(tile.hidden, float("-inf"))
        if sinks is not None:
            column = sinks.to(wide).view(-1, 1, 1).expand(-1, num_queries, 1)
            scores = torch.cat([scores, column], -1)
        weights = scores.softmax(-1)[..., : len(tile.keys)]
        attended = weights.reshape(len(tokens), -1, len(tile.keys)) @ tile_values
        output[tile.queries] = attended.view(num_heads, num_queries, -1).transpose(0, 1)
    return output[None]


_ROOM = "optimist_worker.core.attention"
WRITE = Operation("kv_write", _write, f"{_ROOM}.kv_write:write")
ATTEND = Operation(
    "attention",
    attend_rows,
    f"{_ROOM}.launch:attend",
    "optimist_worker.cpu_kernels.launch:attend",
)
