"""Drafts of heads on the target: EAGLE as a network, Medusa for all levels at once."""

import torch

from optimist_common.drafts import DraftSource
from optimist_worker.core.acceptance.sampling_table import SamplingTable
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.attention.kv import KVPool
from optimist_worker.core.batch.flat_batch import (
    FedLevel,
    PassSize,
    build_known_batch,
    build_level_batch,
)
from optimist_worker.core.batch.slot_table import SlotTable
from optimist_worker.drafters.autoregressive import LastFeatures, Thought
from optimist_worker.drafters.drafter import DraftRows, Proposal, VerifiedStep
from optimist_worker.drafters.heads.eagle import EagleHead
from optimist_worker.drafters.heads.medusa import MedusaHeads
from optimist_worker.drafters.shape import DraftShape, Growth, draft_level


class EagleNetwork:
    """Runs the head over every verified token with the target's features, then over its own.

    Keys and values of the token at place p + 1 lie at place p, with the feature of p. What it
    drafts writes to places that the next verified tokens take.
    """

    def __init__(self, head: EagleHead, table: SlotTable, dtype: torch.dtype) -> None:
        """Takes memory for keys, values and the last feature of every slot."""
        self._head, self._table = head, table
        self.pool = KVPool(head.layers, table.trash_block, table.block_size, dtype, table.device)
        size = head.config.hidden_size
        self._last = LastFeatures(table.num_slots, size, dtype, table.device)

    def admit(self, slot: int) -> None:
        """Forgets whatever it knew of a slot."""
        self._last.forget(slot)

    def is_ready(self, rows: DraftRows) -> torch.Tensor:
        """Returns which rows have a feature to go on from, bool `[num_rows]`."""
        return self._last.is_known(rows.slots)

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
        hidden = self._head(batch.input_ids, batch.positions, level.features, batch.attention)
        return Thought(self._head.logits(hidden), hidden)

    def observe(
        self,
        step: VerifiedStep,
        was_drafted: torch.Tensor,
        fed_path: torch.Tensor,
        num_kept: torch.Tensor,
    ) -> None:
        """Runs over the verified tokens of a pass with the target's features."""
        if step.features is None:
            raise ValueError("an EAGLE head needs the target's features")
        rows = step.rows
        accepted = torch.where(step.num_emitted > 0, step.verdict.num_accepted, 0)
        is_right = step.verdict.is_finite
        lengths = torch.where(is_right, rows.num_known_tokens + accepted, 0)
        size = step.size
        if self._table.reads_sizes:
            size = PassSize(int(lengths.sum()), 0, size.max_num_queries, size.max_num_keys)
        if not size.num_tokens:
            return
        batch, tokens = build_known_batch(
            self._table, self.pool, rows.slots, rows.starts, lengths, size, shift=1
        )
        features = step.features[step.find_tokens(tokens.rows, tokens.offsets)]
        hidden = self._head(batch.input_ids, batch.positions, features, batch.attention)
        self._last.keep(rows.slots, hidden[batch.logits_indices], step.num_emitted > 0)


class MedusaDrafter:
    """Each head guesses the token at its distance, whatever the others guess."""

    source = DraftSource.MEDUSA

    def __init__(
        self,
        heads: MedusaHeads,
        table: SlotTable,
        shape: DraftShape,
        sampling: SamplingTable,
        dtype: torch.dtype,
        rule: AcceptanceRule,
    ) -> None:
        """Sets the drafter up; `rule` is the one by which the drafts will be judged."""
        self.max_tokens, self.max_depth = shape.num_tokens, min(shape.depth, heads.num_heads)
        self._heads, self._shape, self._sampling = heads, shape, sampling
        self._rule = shape.rule(rule)
        size = heads.layer_weight.shape[-1]
        self._last = LastFeatures(table.num_slots, size, dtype, table.device)

    def admit(self, slot: int) -> None:
        """Forgets the slot's hidden state."""
        self._last.forget(slot)

    def propose(self, rows: DraftRows) -> Proposal:
        """Drafts for the rows that have emitted something."""
        limits = torch.where(self._last.is_known(rows.slots), rows.limits, 0)
        logits = self._heads(self._last.read(rows.slots))
        growth = Growth(self._shape, len(rows.slots), rows.slots.device)
        for depth in range(1, min(self.max_depth, rows.width) + 1):
            level = draft_level(
                logits[depth - 1], rows, depth, self._sampling, self._shape, self._rule
            )
            if depth > 1:
                level = level.repeat(growth.advance()[0].shape[1])
            growth.add(level)
        drafts, _ = growth.finish(limits, int(self.source))
        return Proposal(drafts)

    def observe(self, step: VerifiedStep) -> None:
        """Keeps the hidden state that the last emitted token came from."""
        if step.features is None:
            raise ValueError("Medusa heads need the target's hidden states")
        rows = step.rows
        row = torch.arange(len(rows.slots), device=rows.slots.device)
        last = step.find_tokens(row, rows.num_known_tokens + step.verdict.num_accepted - 1)
        self._last.keep(rows.slots, step.features[last], step.num_emitted > 0)
