"""A model of its own as a drafter: a smaller one, or the target quantised."""

from typing import Literal

import torch

from optimist_worker.core.attention.kv import KVPool
from optimist_worker.core.batch.flat_batch import (
    FedLevel,
    PassSize,
    build_known_batch,
    build_level_batch,
)
from optimist_worker.core.batch.results import move_path
from optimist_worker.core.batch.slot_table import SlotTable
from optimist_worker.drafters.autoregressive import Thought
from optimist_worker.drafters.drafter import DraftRows, VerifiedStep
from optimist_worker.model.model import Model

DraftKV = Literal["keep_and_rollback", "discard"]


class DraftModelNetwork:
    """Runs a model on blocks of its own that have the ids of the target's.

    What it has not computed of a row yet is computed when the row is drafted for, so that a row
    which follows its prediction costs it nothing.
    """

    def __init__(
        self, model: Model, table: SlotTable, vocab_size: int, max_tokens: int, kv: DraftKV
    ) -> None:
        """Takes memory for keys and values.

        Args:
            model: What drafts.
            table: State of the target's slots.
            vocab_size: Of the target; tokens have the same ids in both.
            max_tokens: Most tokens of one pass.
            kv: Whether keys and values stay after a step: keep_and_rollback keeps those of
                verified tokens, discard computes the whole context anew each time.
        """
        self._model, self._table, self._max_tokens, self._kv = model, table, max_tokens, kv
        self._vocab_size = vocab_size
        self.pool = KVPool(
            model.layers, table.trash_block, table.block_size, model.dtype, model.device
        )
        self._num_computed = torch.zeros(
            table.num_slots + 1, dtype=torch.int64, device=table.device
        )

    def admit(self, slot: int) -> None:
        """Forgets whatever it knew of a slot."""
        self._num_computed[slot] = 0

    def is_ready(self, rows: DraftRows) -> torch.Tensor:
        """Returns which rows can be drafted for, bool `[num_rows]`.

        Where sizes are not read, the host does not expect a row whose window has just ended. What
        has no room in the pass waits for the next step.
        """
        missing = rows.columns.num_tokens - self._num_computed[rows.slots]
        is_ready = (rows.limits > 0) & (missing <= self._most_missing(rows))
        if self._kv == "discard" or self._table.reads_sizes:
            return is_ready
        # The shortest come first, so that a long row keeps no others from being drafted for.
        lengths, order = torch.where(is_ready, missing.clamp(min=1), 0).sort(stable=True)
        has_room = lengths.cumsum(0) <= rows.num_unseen
        return is_ready & torch.empty_like(is_ready).scatter_(0, order, has_room)

    def begin(self, rows: DraftRows) -> Thought:
        """Computes what is missing of each row; its last token comes in the last pass."""
        known, length = self._num_computed[rows.slots], rows.columns.num_tokens
        is_wanted = self.is_ready(rows)
        # What is drafted follows from the last token, so that is always computed. Rows without
        # drafts may have too few blocks for their tokens.
        computed = torch.where(is_wanted, torch.minimum(known, length - 1), length)
        missing = length - computed
        most, total = self._bounds(rows, missing)
        per_row = most if total <= self._max_tokens else max(1, self._max_tokens // len(length))
        thought = None
        for behind in range((most - 1) // per_row * per_row, -1, -per_row):
            # Rows with less to compute join as late as they can.
            starts = torch.minimum(torch.maximum(computed, length - behind - per_row), length)
            lengths = (length - behind - starts).clamp(min=0)
            thought = self._run(rows, starts, lengths, per_row, min(total, per_row * len(length)))
        if thought is None:
            raise ValueError("rows without a token cannot be drafted for")
        self._num_computed.index_copy_(0, rows.slots, torch.where(is_wanted, length, known))
        return thought

    def feed(self, rows: DraftRows, level: FedLevel) -> Thought:
        """Goes on from drafts, which lie after the verified tokens in the order they were fed."""
        batch = build_level_batch(
            self._table, self.pool, rows.slots, rows.columns.num_tokens, level, rows.max_length
        )
        return Thought(self._fit_vocabulary(self._model.forward(batch)), None)

    def observe(
        self,
        step: VerifiedStep,
        was_drafted: torch.Tensor,
        fed_path: torch.Tensor,
        num_kept: torch.Tensor,
    ) -> None:
        """Keeps what was accepted of the fed drafts, and leaves the rest to be overwritten."""
        slots, before = step.rows.slots, step.rows.columns.num_tokens
        if self._kv == "discard":
            self._num_computed.index_fill_(0, slots, 0)
            return
        if step.verdict.path is not None:
            move_path(self._table, self.pool, slots, before, fed_path, num_kept)
        known = self._num_computed[slots]
        self._num_computed.index_copy_(0, slots, torch.where(was_drafted, before + num_kept, known))

    def _most_missing(self, rows: DraftRows) -> int:
        """Returns how many tokens of one row may be missing, as the host knows."""
        if self._kv == "discard" or self._table.reads_sizes:
            return rows.max_length
        return max(rows.max_unseen, 1)

    def _bounds(self, rows: DraftRows, missing: torch.Tensor) -> tuple[int, int]:
        """Returns the most tokens of one row that are missing, and of all rows together."""
        if self._table.reads_sizes:
            return int(missing.max()), int(missing.sum())
        most = self._most_missing(rows)
        if self._kv == "discard":
            return most, most * len(missing)
        return most, rows.num_unseen

    def _run(
        self, rows: DraftRows, starts: torch.Tensor, lengths: torch.Tensor, most: int, total: int
    ) -> Thought:
        """Runs a pass over some tokens, of each row at most `most` and of all `total`."""
        num_tokens = int(lengths.sum()) if self._table.reads_sizes else total
        size = PassSize(num_tokens, len(rows.slots), most, rows.max_length)
        batch, _ = build_known_batch(self._table, self.pool, rows.slots, starts, lengths, size)
        return Thought(self._fit_vocabulary(self._model.forward(batch)), None)

    def _fit_vocabulary(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits of the target's tokens; matrices may be padded differently."""
        lacking = self._vocab_size - logits.shape[1]
        if lacking > 0:
            return torch.nn.functional.pad(logits, (0, lacking), value=float("-inf"))
        return logits[:, : self._vocab_size]
