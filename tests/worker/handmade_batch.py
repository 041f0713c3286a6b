"""Flat batches made by hand from a description of their rows, for tests of attention."""

from dataclasses import dataclass

import torch

from optimist_worker.core.attention.kv import KVPool
from optimist_worker.core.attention.paged_attention import AttentionBatch


@dataclass(frozen=True)
class BatchRow:
    """Some known tokens, or drafts in a chain, and after them maybe a tree of drafts."""

    num_computed: int
    num_tokens: int
    """Tokens before the tree."""
    parents: tuple[int, ...] = ()
    """Parent of every node of the tree; -1 is the last token before the tree."""

    @property
    def num_queries(self) -> int:
        return self.num_tokens + len(self.parents)

    @property
    def num_keys(self) -> int:
        return self.num_computed + self.num_queries

    @property
    def tree_start(self) -> int:
        return self.num_computed + self.num_tokens

    @property
    def paths(self) -> list[list[int]]:
        """Each node's ancestors and itself, from the root on."""
        paths: list[list[int]] = []
        for node, parent in enumerate(self.parents):
            paths.append([*(paths[parent] if parent >= 0 else []), node])
        return paths

    @property
    def positions(self) -> list[int]:
        known = list(range(self.num_computed, self.tree_start))
        return known + [self.tree_start - 1 + len(path) for path in self.paths]

    @property
    def ancestors(self) -> list[int]:
        """Bits as in AttentionBatch; the sign bit is node 63."""
        masks = [sum(1 << node for node in path) for path in self.paths]
        return [0] * self.num_tokens + [mask - (mask >> 63 << 64) for mask in masks]

    def visible(self, query: int, window: int | None) -> list[int]:
        """Places of the keys that a token sees."""
        place = self.num_computed + query
        if place < self.tree_start:
            keys = list(range(place + 1))
        else:
            nodes = self.paths[place - self.tree_start]
            keys = [*range(self.tree_start), *(self.tree_start + node for node in nodes)]
        if window is None:
            return keys
        positions = [*range(self.num_computed), *self.positions]
        return [key for key in keys if positions[key] > self.positions[query] - window]


def handmade_batch(
    rows: list[BatchRow],
    tables: list[list[int]],
    pool: KVPool,
    *,
    num_padded_tokens: int = 0,
    num_padded_rows: int = 0,
    bounds: tuple[int, int] = (0, 0),
) -> AttentionBatch:
    """Builds a batch; `tables` are the blocks of its rows, the pool's last block is the trash.

    Args:
        bounds: Most queries and most keys of a row as the host knows them, if that is more than
            there are.
    """
    trash = pool.num_blocks - 1
    places, starts = [], [0]
    for row, table in zip(rows, tables, strict=True):
        starts.append(starts[-1] + row.num_queries)
        places += [
            table[key // pool.block_size] * pool.block_size + key % pool.block_size
            for key in range(row.num_computed, row.num_keys)
        ]
    places += [trash * pool.block_size] * num_padded_tokens
    starts += [starts[-1]] * num_padded_rows
    width = max([len(table) for table in tables], default=1)
    padded_tables = [table + [trash] * (width - len(table)) for table in tables]
    padded_tables += [[trash] * width] * num_padded_rows
    padding, no_rows = [0] * num_padded_tokens, [0] * num_padded_rows
    has_trees = any(row.parents for row in rows)
    return AttentionBatch(
        pool=pool,
        slot_mapping=torch.tensor(places, dtype=torch.int64),
        query_starts=torch.tensor(starts),
        num_computed_tokens=torch.tensor([row.num_computed for row in rows] + no_rows),
        tree_starts=torch.tensor([row.tree_start for row in rows] + no_rows),
        positions=torch.tensor([at for row in rows for at in row.positions] + padding),
        ancestors=torch.tensor([bits for row in rows for bits in row.ancestors] + padding)
        if has_trees
        else None,
        block_tables=torch.tensor(padded_tables, dtype=torch.int32),
        max_num_queries=max([bounds[0], *(row.num_queries for row in rows)]),
        max_num_keys=max([bounds[1], *(row.num_keys for row in rows)]),
    )
