"""What the attention of every layer needs to know about a flat batch."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

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
