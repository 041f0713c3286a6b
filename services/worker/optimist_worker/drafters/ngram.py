"""Drafts from a request's predictions and its own text, see `core/lookup.py`."""

import torch

from optimist_common.drafts import DraftSource
from optimist_common.lookup import Doubts
from optimist_worker.core.batch.slot_table import SlotTable
from optimist_worker.core.drafts import Drafts
from optimist_worker.core.lookup import LOOK_UP, NO_CURSOR, Looking, Predictions
from optimist_worker.core.plan import Admission
from optimist_worker.drafters.drafter import DraftRows, Proposal, VerifiedStep


class NgramDrafter:
    """Copies on from where the last tokens occur in predictions or before; a chain per row."""

    source = DraftSource.NGRAM

    def __init__(self, table: SlotTable, max_tokens: int) -> None:
        """Sets up a drafter of up to `max_tokens` drafts per row."""
        self.max_tokens = self.max_depth = max_tokens
        self._table = table
        self._sources = torch.full((1,), int(self.source), device=table.device)
        self._cursors = torch.full((table.num_slots + 1,), NO_CURSOR, device=table.device)
        self._predictions = Predictions(table)
        # Where sizes are not read, a pass takes the time of all drafts that were planned.
        self._doubts = Doubts(table.num_slots + 1) if table.reads_sizes else None

    def admit(self, admission: Admission) -> None:
        """Takes a request's predictions; forgets where the slot's output was copied from."""
        slot = admission.slot
        self._table.writes.put(self._cursors[slot : slot + 1], [NO_CURSOR])
        self._predictions.admit(admission)
        if self._doubts is not None:
            self._doubts.admit(slot)

    def propose(self, rows: DraftRows) -> Proposal:
        """Drafts what follows the longest match; nothing where no index is like the row's end."""
        found = LOOK_UP(
            self._table.token_ids,
            Looking(rows.slots, rows.columns, rows.limits, rows.width, rows.max_length),
            self._cursors,
            self._predictions,
        )
        number = found.num_tokens
        if self._doubts is not None:
            slots, matched = rows.slots.numpy(), found.num_matched.numpy()
            likely = self._doubts.count_likely(slots, matched, rows.least_chance)
            number = torch.minimum(number, torch.from_numpy(likely))
        drafts = Drafts(
            token_ids=found.token_ids,
            num_tokens=number,
            sources=self._sources.expand(len(number)),
            positions=found.positions,
        )
        return Proposal(drafts)

    def observe(self, step: VerifiedStep) -> None:
        """Learns how far lookups of a slot can be trusted."""
        if self._doubts is None:
            return
        drafts, accepted = step.proposal.drafts, step.verdict.num_accepted
        is_judged = (drafts.sources == int(self.source)) & (
            drafts.num_tokens * step.num_emitted > 0
        )
        if len(rows := is_judged.nonzero()[:, 0]):
            judged = step.rows.slots[rows], drafts.num_tokens[rows], accepted[rows]
            self._doubts.observe(*(column.numpy() for column in judged))
