"""A drafter whose errors cost drafts, and nothing else."""

import logging
from collections.abc import Callable

import torch

from optimist_worker.core.batch.slot_table import SlotTable
from optimist_worker.core.drafts import no_drafts
from optimist_worker.core.plan import Admission
from optimist_worker.drafters.drafter import Drafter, DraftRows, Proposal, VerifiedStep

logger = logging.getLogger(__name__)


class GuardedDrafter:
    """Steps go on without drafts where another drafter fails.

    A row of which it has not taken a pass in is drafted for no more: what it keeps of that row may
    have gaps. Errors while a step is captured are raised, so that it is run as it is.
    """

    def __init__(
        self, drafter: Drafter, table: SlotTable, on_failure: Callable[[int], None] | None = None
    ) -> None:
        """Guards a drafter; `on_failure` is called with the number of each failure, from 1 on."""
        self.source, self.max_tokens = drafter.source, drafter.max_tokens
        self.max_depth = drafter.max_depth
        self.guarded = drafter
        self.num_failures = 0
        self._on_failure, self._table = on_failure, table

    def admit(self, admission: Admission) -> None:
        """Forgets whatever it knew of a slot."""
        may_draft = 1
        try:
            self.guarded.admit(admission)
        except Exception as error:
            self._note(error)
            may_draft = 0
        slot, table = admission.slot, self._table
        table.writes.put(table.may_draft[slot : slot + 1], [may_draft])

    def propose(self, rows: DraftRows) -> Proposal:
        """Drafts for some rows; for none if that fails."""
        try:
            return self.guarded.propose(rows)
        except Exception as error:
            self._note(error)
            return Proposal(no_drafts(len(rows.slots), rows.slots.device))

    def observe(self, step: VerifiedStep) -> None:
        """Learns from a pass of the target."""
        try:
            self.guarded.observe(step)
        except Exception as error:
            self._note(error)
            self._table.may_draft.index_fill_(0, step.rows.slots, 0)

    def _note(self, error: Exception) -> None:
        """Counts a failure, and logs the 1st, 2nd, 4th, 8th and so on."""
        if self._table.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise error
        self.num_failures += 1
        if not self.num_failures & (self.num_failures - 1):
            number, source = self.num_failures, self.source.label
            logger.error("no drafts of %s: it failed (%d times)", source, number, exc_info=error)
        if self._on_failure is not None:
            self._on_failure(self.num_failures)
