"""Networks that draft by being fed their own drafts: a model of its own, and EAGLE heads."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from optimist_worker.core.attention.paged_attention import KVPool
from optimist_worker.core.batch.flat_batch import (
    FedLevel,
    FlatBatch,
    PassSize,
    build_known_batch,
    build_level_batch,
)
from optimist_worker.core.batch.results import MOVE
from optimist_worker.core.batch.slot_table import SlotTable
from optimist_worker.drafters.drafter import DraftRows, VerifiedStep
from optimist_worker.drafters.heads.eagle import EagleHead
from optimist_worker.model.model import Model

DraftKV = Literal["keep_and_rollback", "discard"]


@dataclass(slots=True)
class Thought:
    """What a network makes of some tokens."""

    logits: torch.Tensor
    """For what follows each token, in the target's vocabulary, `[num_tokens, vocab_size]`."""
    features: torch.Tensor | None = None
    """What it has to be given when it goes on from there, `[num_tokens, dim]`."""


class KeptDrafts(NamedTuple):
    """What the target has accepted of the drafts that a network was fed."""

    was_drafted: torch.Tensor
    """Which rows this network has drafted, bool `[num_rows]`."""
    path: torch.Tensor
    """Which of the fed nodes each accepted draft was, `[num_rows, width]`."""
    number: torch.Tensor
    """How many of them, from the first on, were fed, `[num_rows]`."""


class DraftModelNetwork:
    """A smaller model, or the target quantised, on blocks with the ids of the target's.

    What it has not computed of a row yet is computed when the row is drafted for, so that a row
    which follows its prediction costs it nothing.
    """

    def __init__(
        self, model: Model, table: SlotTable, vocab_size: int, max_tokens: int, kv: DraftKV
    ) -> None:
        """Takes memory for keys and values, which `discard` computes anew in each step.

        Tokens have the same ids in the target's vocabulary, and a pass has at most `max_tokens`.
        The model may have fewer of them, or more, and fewer positions: then there are no drafts
        after a token or beyond a position that it does not know.
        """
        self._model, self._table, self._max_tokens, self._kv = model, table, max_tokens, kv
        self._vocab_size, self.reads_sizes = vocab_size, table.reads_sizes
        self._num_ids = min(int(model.module.get_input_embeddings().weight.shape[0]), vocab_size)
        self._num_positions = min(model.max_position_embeddings, table.token_ids.shape[1])
        self._knows_all_ids = self._num_ids == vocab_size
        self._knows_all_positions = self._num_positions == table.token_ids.shape[1]
        self.pool = KVPool(
            model.layers, table.trash_block, table.block_size, model.dtype, model.device
        )
        self._num_computed = torch.zeros(
            table.num_slots + 1, dtype=torch.int64, device=table.device
        )

    def admit(self, slot: int) -> None:
        """Forgets whatever it knew of a slot."""
        self._num_computed[slot] = 0

    def find_limits(self, rows: DraftRows) -> torch.Tensor:
        """Returns the most drafts of each row, `[num_rows]`.

        Where sizes are not read, the host does not expect a row whose window has just ended. What
        has no room in the pass waits for the next step.
        """
        length, limits = rows.columns.num_tokens, rows.limits
        missing = length - self._num_computed[rows.slots]
        limits = torch.where(missing <= self._most_missing(rows), limits, 0)
        if not self._knows_all_positions:
            # The last token has a position, and so have all drafts but the last one.
            limits = torch.minimum(limits, (self._num_positions - length + 1).clamp(min=0))
        if not self._knows_all_ids:
            last = self._table.read_tokens(rows.slots, (length - 1).clamp(min=0))
            limits = torch.where(last < self._num_ids, limits, 0)
        if self._kv == "discard" or self._table.reads_sizes:
            return limits
        # The shortest come first, so that a long row keeps no others from being drafted for.
        is_ready = limits > 0
        lengths, order = torch.where(is_ready, missing.clamp(min=1), 0).sort(stable=True)
        has_room = lengths.cumsum(0) <= rows.num_unseen
        return limits * torch.empty_like(is_ready).scatter_(0, order, has_room)

    def begin(self, rows: DraftRows) -> Thought:
        """Computes what is missing of each row; its last token comes in the last pass."""
        known, length = self._num_computed[rows.slots], rows.columns.num_tokens
        is_wanted = self.find_limits(rows) > 0
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
            num_tokens = min(total, per_row * len(length))
            if self._table.reads_sizes:
                num_tokens = int(lengths.sum())
            size = PassSize(num_tokens, len(length), per_row, rows.max_length)
            thought = self._think(
                build_known_batch(self._table, self.pool, rows.slots, starts, lengths, size)[0]
            )
        if thought is None:
            raise ValueError("rows without a token cannot be drafted for")
        self._num_computed.index_copy_(0, rows.slots, torch.where(is_wanted, length, known))
        return thought

    def feed(self, rows: DraftRows, level: FedLevel) -> Thought:
        """Goes on from drafts, which lie after the verified tokens in the order they were fed."""
        first = rows.columns.num_tokens
        return self._think(
            build_level_batch(self._table, self.pool, rows.slots, first, level, rows.max_length)
        )

    def observe(self, step: VerifiedStep, kept: KeptDrafts) -> None:
        """Keeps what was accepted of the fed drafts, and leaves the rest to be overwritten."""
        slots, before = step.rows.slots, step.rows.columns.num_tokens
        if self._kv == "discard":
            self._num_computed.index_fill_(0, slots, 0)
            return
        if step.verdict.path is not None:
            MOVE(kept.path, kept.number, slots, before, self._table, self.pool)
        known, computed = self._num_computed[slots], before + kept.number
        self._num_computed.index_copy_(0, slots, torch.where(kept.was_drafted, computed, known))

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
        return most, most * len(missing) if self._kv == "discard" else rows.num_unseen

    def _think(self, batch: FlatBatch) -> Thought:
        """Runs a pass; its logits are of the target's tokens, as matrices may be padded.

        Tokens that the model does not know are fed as some other one, and what is beyond its
        positions as at the last one: it is padding, or never drafted from.
        """
        if not self._knows_all_ids:
            batch.input_ids = batch.input_ids.clamp(max=self._num_ids - 1)
        if not self._knows_all_positions:
            batch.positions = batch.positions.clamp(max=self._num_positions - 1)
        logits = self._model.forward(batch)[:, : self._num_ids]
        lacking = self._vocab_size - logits.shape[1]
        if lacking > 0:
            logits = torch.nn.functional.pad(logits, (0, lacking), value=float("-inf"))
        return Thought(logits)


class LastFeatures:
    """Features of the last token of each slot; one more row, which padding names."""

    def __init__(self, size: int, table: SlotTable, dtype: torch.dtype) -> None:
        shape = (table.num_slots + 1, size)
        self._features = torch.zeros(shape, dtype=dtype, device=table.device)
        self._is_known = torch.zeros(shape[0], dtype=torch.bool, device=table.device)

    def forget(self, slot: int) -> None:
        """Forgets those of a slot: another request holds it now."""
        self._is_known[slot] = False

    def is_known(self, slots: torch.Tensor) -> torch.Tensor:
        """Returns which slots have some, bool `[num_rows]`."""
        return self._is_known[slots]

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Returns those of some slots, `[num_rows, size]`; of others anything."""
        return self._features[slots]

    def keep(self, slots: torch.Tensor, features: torch.Tensor, has_emitted: torch.Tensor) -> None:
        """Replaces those of the slots that have emitted something, `[num_rows, size]`.

        Padding may name the last row several times.
        """
        kept = torch.where(has_emitted[:, None], features, self._features[slots])
        self._features.index_copy_(0, slots, kept)
        self._is_known.index_copy_(0, slots, self._is_known[slots] | has_emitted)


class EagleNetwork:
    """Runs the head over every verified token with the target's features, then over its own.

    Keys and values of the token at index p + 1 lie at index p, with the feature of p. What it
    drafts writes to indices that the next verified tokens take.
    """

    def __init__(self, head: EagleHead, table: SlotTable, dtype: torch.dtype) -> None:
        """Takes memory for keys, values and the last feature of every slot."""
        self._head, self._table, self.reads_sizes = head, table, table.reads_sizes
        self.pool = KVPool(head.layers, table.trash_block, table.block_size, dtype, table.device)
        self._last = LastFeatures(head.config.hidden_size, table, dtype)

    def admit(self, slot: int) -> None:
        """Forgets whatever it knew of a slot."""
        self._last.forget(slot)

    def find_limits(self, rows: DraftRows) -> torch.Tensor:
        """Returns the most drafts of each row; 0 without a feature to go on from, `[num_rows]`."""
        return torch.where(self._last.is_known(rows.slots), rows.limits, 0)

    def begin(self, rows: DraftRows) -> Thought:
        """Returns what follows the last token, which `observe` has computed."""
        features = self._last.read(rows.slots)
        return Thought(self._head.logits(features), features)

    def feed(self, rows: DraftRows, level: FedLevel) -> Thought:
        """Goes on from drafts with the features that it has made itself."""
        if level.features is None:
            raise ValueError("an EAGLE head goes on from features")
        # The row for padding has no token.
        first = (rows.columns.num_tokens - 1).clamp(min=0)
        batch = build_level_batch(self._table, self.pool, rows.slots, first, level, rows.max_length)
        hidden = self._run(batch, level.features)
        return Thought(self._head.logits(hidden), hidden)

    def observe(self, step: VerifiedStep, kept: KeptDrafts) -> None:
        """Runs over the verified tokens of a pass with the target's features."""
        if step.features is None:
            raise ValueError("an EAGLE head needs the target's features")
        rows, size = step.rows, step.size
        accepted = torch.where(step.num_emitted > 0, step.verdict.num_accepted, 0)
        lengths = torch.where(step.verdict.is_sound, rows.num_known_tokens + accepted, 0)
        if self._table.reads_sizes:
            size = PassSize(int(lengths.sum()), 0, size.max_num_queries, size.max_num_keys)
        if not size.num_tokens:
            return
        batch, tokens = build_known_batch(
            self._table, self.pool, rows.slots, rows.starts, lengths, size, shift=1
        )
        hidden = self._run(batch, step.features[step.find_tokens(tokens.rows, tokens.offsets)])
        self._last.keep(rows.slots, hidden[batch.logits_indices], step.num_emitted > 0)

    def _run(self, batch: FlatBatch, features: torch.Tensor) -> torch.Tensor:
        inputs = batch.input_ids[None], batch.positions[None], features[None]
        return self._head.run(*inputs, paged=batch.attention)[0]


DraftNetwork = DraftModelNetwork | EagleNetwork
"""Keeps keys and values of its own, in blocks that mirror the target's."""
