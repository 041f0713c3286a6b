"""Rows of different kinds and lengths as one flat batch for one forward pass."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from optimist_worker.core.kv import KVPool
from optimist_worker.core.row import Row


@dataclass(slots=True)
class Span:
    """One row in the flat batch: where its queries lie, and where its keys."""

    query_start: int
    num_queries: int
    num_keys: int
    """Length of the context, the row's own tokens included; the last `num_queries` keys."""
    kv_indices: torch.Tensor | slice
    """Places of the keys in the pool, `[num_keys]`; a slice where the blocks are consecutive."""


class AttentionBatch:
    """What the attention of every layer needs to know about the batch."""

    def __init__(self, pool: KVPool, slot_mapping: torch.Tensor, spans: list[Span]) -> None:
        self.pool = pool
        self.slot_mapping = slot_mapping
        """Place in the pool of every token of the batch, int64 `[num_tokens]`."""
        self.spans = spans
        self._biases: dict[tuple[int, int | None], torch.Tensor] = {}

    def bias(self, number: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """Returns what is added to the scores of span `number`: 0 where visible, else -inf.

        It is made once for all layers with the same sliding window, `[num_queries, num_keys]`;
        keys before `first_key` of the span are left out.
        """
        bias = self._biases.get((number, window))
        if bias is None:
            bias = self._make_bias(self.spans[number], window, dtype)
            self._biases[number, window] = bias
        return bias

    def _make_bias(self, span: Span, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        device = self.slot_mapping.device
        keys = torch.arange(first_key(span, window), span.num_keys, device=device)[None, :]
        first_query = span.num_keys - span.num_queries
        queries = torch.arange(first_query, span.num_keys, device=device)[:, None]
        hidden = keys > queries
        if window is not None:
            hidden |= keys <= queries - window
        zeros = torch.zeros(hidden.shape, dtype=dtype, device=device)
        return zeros.masked_fill_(hidden, float("-inf"))


def first_key(span: Span, window: int | None) -> int:
    """Returns the first position that any query of the span can see."""
    if window is None:
        return 0
    return max(0, span.num_keys - span.num_queries - window + 1)


@dataclass(slots=True)
class Batch:
    """The inputs of one forward pass over all rows."""

    input_ids: torch.Tensor
    """`[1, num_tokens]`."""
    position_ids: torch.Tensor
    """`[1, num_tokens]`."""
    logits_indices: torch.Tensor
    """Tokens whose logits are needed, `[num_logits]`."""
    attention: AttentionBatch


def build_batch(rows: list[Row], pool: KVPool, device: torch.device) -> Batch:
    """Flattens rows, one after the other, into one batch."""
    token_ids: list[int] = []
    positions: list[npt.NDArray[np.int64]] = []
    places: list[npt.NDArray[np.int64]] = []
    logits_indices: list[int] = []
    spans: list[Span] = []
    for row in rows:
        query_start, end = len(token_ids), row.start + row.num_tokens
        token_ids += row.token_ids
        context = _places(row.slot.block_table, end, pool.block_size)
        positions.append(np.arange(row.start, end))
        places.append(context[row.start :])
        logits_indices += range(len(token_ids) - row.num_logits, len(token_ids))
        spans.append(Span(query_start, row.num_tokens, end, _index(context, device)))
    slot_mapping = torch.from_numpy(np.concatenate(places)).to(device)
    return Batch(
        input_ids=torch.tensor([token_ids], device=device),
        position_ids=torch.from_numpy(np.concatenate(positions)[None]).to(device),
        logits_indices=torch.tensor(logits_indices, dtype=torch.int64, device=device),
        attention=AttentionBatch(pool, slot_mapping, spans),
    )


def _places(block_table: list[int], num_tokens: int, block_size: int) -> npt.NDArray[np.int64]:
    """Returns where the first tokens of a block table lie in the pool, `[num_tokens]`."""
    blocks = np.array(block_table[: -(-num_tokens // block_size)], dtype=np.int64)
    return (blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)[:num_tokens]


def _index(places: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor | slice:
    """Returns a slice for consecutive places, which reads the pool without a copy."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places) and bool((np.diff(places) == 1).all()):
        return slice(first, last + 1)
    return torch.from_numpy(places).to(device)
