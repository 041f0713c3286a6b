"""Random queries, keys and values for a flat batch, and what attention makes of them."""

import random
from dataclasses import dataclass
from typing import Any

import torch

from optimist_worker.core.attention.kv import KVPool, LayerSpec
from optimist_worker.core.attention.paged_attention import AttentionBatch
from tests.worker.handmade_batch import BatchRow, handmade_batch

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


@dataclass(frozen=True)
class Case:
    """A batch whose keys and values lie in the pool, its tokens' own ones included."""

    shape: Shape
    rows: list[BatchRow]
    tables: list[list[int]]
    pool: KVPool
    query: torch.Tensor
    """`[1, num_heads, num_tokens, key_dim]`, padding last."""

    def batch(self, **options: Any) -> AttentionBatch:
        return handmade_batch(self.rows, self.tables, self.pool, **options)

    def alone(self, number: int) -> "Case":
        """Returns the case of one row."""
        start = sum(row.num_queries for row in self.rows[:number])
        query = self.query[:, :, start : start + self.rows[number].num_queries]
        return Case(self.shape, [self.rows[number]], [self.tables[number]], self.pool, query)


def make_case(
    rows: list[BatchRow],
    shape: Shape | None = None,
    dtype: torch.dtype = torch.float64,
    *,
    num_padded_tokens: int = 0,
    consecutive: bool = False,
) -> Case:
    """Draws a case; without `consecutive`, blocks lie in random order."""
    shape = Shape() if shape is None else shape
    generator = torch.Generator().manual_seed(len(rows))
    counts = [-(-row.num_keys // BLOCK_SIZE) for row in rows]
    blocks = list(range(sum(counts)))
    if not consecutive:
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
            places = torch.tensor(
                [
                    table[key // BLOCK_SIZE] * BLOCK_SIZE + key % BLOCK_SIZE
                    for key in row.visible(query, window)
                ]
            )
            keys = case.pool.keys[0][places].double().repeat_interleave(groups, 1)
            values = case.pool.values[0][places].double().repeat_interleave(groups, 1)
            vector = case.query[0, :, len(outputs)].double()
            scores = torch.einsum("hd,nhd->hn", vector, keys) * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if sinks is not None:
                scores = torch.cat([scores, sinks.double()[:, None]], dim=1)
            weights = scores.softmax(1)[:, : len(places)]
            outputs.append(torch.einsum("hn,nhd->hd", weights, values))
    return torch.stack(outputs)
