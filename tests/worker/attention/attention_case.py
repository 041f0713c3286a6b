"""Flat batches of random queries, keys and values, and what attention makes of them."""

import itertools
import random
from dataclasses import dataclass

import torch

from optimist_worker.core.attention.paged_attention import AttentionBatch, KVPool, LayerSpec


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
        """Indices of the keys that a token sees."""
        index = self.num_computed + query
        if index < self.tree_start:
            keys = list(range(index + 1))
        else:
            nodes = self.paths[index - self.tree_start]
            keys = [*range(self.tree_start), *(self.tree_start + node for node in nodes)]
        if window is None:
            return keys
        positions = [*range(self.num_computed), *self.positions]
        return [key for key in keys if positions[key] > self.positions[query] - window]


BLOCK_SIZE = 16
TREE = (-1, 0, 0, 1, 1, 2, -1)
WIDE_TREE = tuple(index // 2 - 1 if index % 3 else -1 for index in range(64))
MIXED = [
    BatchRow(37, 1),
    BatchRow(0, 50),
    BatchRow(130, 5),
    BatchRow(21, 1, TREE),
    BatchRow(64, 20),
    BatchRow(50, 3, TREE[:4]),
]
"""A decoded token, a prompt, a chain, a tree, a chunk, and a tree after several known tokens."""


@dataclass(frozen=True)
class Shape:
    """Of one attention layer."""

    num_heads: int = 4
    num_kv_heads: int = 2
    key_dim: int = 16
    value_dim: int = 16


SHAPE = Shape()


@dataclass(frozen=True)
class Case:
    """A batch whose keys and values lie in the pool, its tokens' own ones included."""

    shape: Shape
    rows: list[BatchRow]
    tables: list[list[int]]
    pool: KVPool
    query: torch.Tensor
    """`[1, num_heads, num_tokens, key_dim]`, padding last."""

    def batch(
        self,
        *,
        num_padded_tokens: int = 0,
        num_padded_rows: int = 0,
        bounds: tuple[int, int] = (0, 0),
    ) -> AttentionBatch:
        """Builds the batch; the pool's last block is the trash.

        Args:
            num_padded_tokens: After all others.
            num_padded_rows: The same.
            bounds: Most queries and most keys of a row as the host knows them, if that is more
                than there are.
        """
        rows, trash = self.rows, self.pool.num_blocks - 1
        indices = [
            table[key // BLOCK_SIZE] * BLOCK_SIZE + key % BLOCK_SIZE
            for row, table in zip(rows, self.tables, strict=True)
            for key in range(row.num_computed, row.num_keys)
        ]
        width = max([len(table) for table in self.tables], default=1)
        tables = [table + [trash] * (width - len(table)) for table in self.tables]
        padding, no_rows = [0] * num_padded_tokens, [0] * num_padded_rows
        ancestors = [bits for row in rows for bits in row.ancestors] + padding
        lengths = [row.num_queries for row in rows] + no_rows
        return AttentionBatch(
            pool=self.pool,
            slot_mapping=torch.tensor(indices + [trash * BLOCK_SIZE] * num_padded_tokens).long(),
            query_starts=torch.tensor([0, *itertools.accumulate(lengths)]),
            num_computed_tokens=torch.tensor([row.num_computed for row in rows] + no_rows),
            tree_starts=torch.tensor([row.tree_start for row in rows] + no_rows),
            positions=torch.tensor([at for row in rows for at in row.positions] + padding),
            ancestors=torch.tensor(ancestors) if any(ancestors) else None,
            block_tables=torch.tensor(tables + [[trash] * width] * num_padded_rows).int(),
            max_num_queries=max([bounds[0], *lengths]),
            max_num_keys=max([bounds[1], *(row.num_keys for row in rows)]),
        )

    def alone(self, number: int) -> "Case":
        """Returns the case of one row."""
        start = sum(row.num_queries for row in self.rows[:number])
        query = self.query[:, :, start : start + self.rows[number].num_queries]
        return Case(self.shape, [self.rows[number]], [self.tables[number]], self.pool, query)


def make_case(
    rows: list[BatchRow],
    shape: Shape = SHAPE,
    dtype: torch.dtype = torch.float64,
    *,
    num_padded_tokens: int = 0,
) -> Case:
    """Draws a case whose blocks lie in random order."""
    generator = torch.Generator().manual_seed(len(rows))
    counts = [-(-row.num_keys // BLOCK_SIZE) for row in rows]
    blocks = list(range(sum(counts)))
    random.Random(7).shuffle(blocks)
    tables = [[blocks.pop(0) for _ in range(count)] for count in counts]
    spec = LayerSpec(shape.num_kv_heads, shape.key_dim, shape.value_dim)
    pool = KVPool([spec], sum(counts) + 1, BLOCK_SIZE, dtype, torch.device("cpu"))
    for memory in (*pool.keys, *pool.values):
        memory.copy_(torch.randn(memory.shape, generator=generator))
    num_tokens = sum(row.num_queries for row in rows) + num_padded_tokens
    query = torch.randn(1, num_tokens, shape.num_heads, shape.key_dim, generator=generator)
    return Case(shape, rows, tables, pool, query.to(dtype).transpose(1, 2))


def expected_output(
    case: Case,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes every token by itself from the keys it sees, in float64.

    Returns:
        `[num_tokens, num_heads, value_dim]` without padding.
    """
    groups = case.shape.num_heads // case.shape.num_kv_heads
    outputs: list[torch.Tensor] = []
    for row, table in zip(case.rows, case.tables, strict=True):
        for query in range(row.num_queries):
            seen = torch.tensor(row.visible(query, window))
            indices = torch.tensor(table)[seen // BLOCK_SIZE] * BLOCK_SIZE + seen % BLOCK_SIZE
            keys = case.pool.keys[0][indices].double().repeat_interleave(groups, 1)
            values = case.pool.values[0][indices].double().repeat_interleave(groups, 1)
            vector = case.query[0, :, len(outputs)].double()
            scores = torch.einsum("hd,nhd->hn", vector, keys) * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if sinks is not None:
                scores = torch.cat([scores, sinks.double()[:, None]], dim=1)
            weights = scores.softmax(1)[:, : len(indices)]
            outputs.append(torch.einsum("hn,nhd->hd", weights, values))
    return torch.stack(outputs)
