"""Makes a decision that was computed ahead fit what has happened since."""

from dataclasses import dataclass, replace

import numpy as np

from optimist_scheduler.core.requests.table import SlotStatus
from optimist_scheduler.core.requests.view import ScheduleView
from optimist_scheduler.core.schedule.admission import admit
from optimist_scheduler.core.schedule.decision import ScheduleDecision, decide
from optimist_scheduler.core.schedule.rows import PlannedRows, plan_rows


@dataclass(slots=True)
class Repair:
    """A decision that fits the present state, or why there is none."""

    decision: ScheduleDecision | None
    """None if it is cheaper to decide anew."""
    reason: str = ""
    """Why there is none."""
    num_dropped: int = 0
    """Rows whose request was over or preempted."""
    num_recomputed: int = 0
    """Rows that were computed again."""
    num_added: int = 0
    """Rows of requests that take a slot now and did not before."""

    @property
    def is_hit(self) -> bool:
        """Whether nothing had to be changed."""
        return not (self.num_dropped or self.num_recomputed or self.num_added)


def repair(view: ScheduleView, decision: ScheduleDecision) -> Repair:
    """Drops or computes again the rows whose version moved; the rest stands.

    Waiting requests are chosen anew: they may have changed, and so may the room for them.
    """
    rows = decision.rows
    stands = view.table.version[rows.slots] == decision.versions
    is_same_queue = view.queue_version == decision.queue_version
    if is_same_queue and np.count_nonzero(stands) == len(stands):
        return Repair(decision)
    stale = rows.slots[~stands]
    goes_on = view.table.status[stale] == SlotStatus.RUNNING
    again = stale[goes_on]
    rows = replace(rows.select(stands), num_repeats=0)
    budget = view.config.max_num_batched_tokens - rows.num_tokens
    num_free = view.blocks.num_free - rows.num_blocks
    more = plan_rows(view, again, budget, num_free) if len(again) else None
    if len(again) and more is None:
        return Repair(None, "memory")
    if more is not None:
        rows = _join(rows, more)
        budget, num_free = budget - more.num_tokens, num_free - more.num_blocks
    admitted = admit(view, len(view.running), budget, num_free)
    before = {row.request.request_id for row in decision.admitted}
    now = {row.request.request_id for row in admitted}
    return Repair(
        decide(view, rows, admitted),
        num_dropped=len(stale) - len(again) + len(before - now),
        num_recomputed=len(again),
        num_added=len(now - before),
    )


def _join(rows: PlannedRows, more: PlannedRows) -> PlannedRows:
    return PlannedRows(
        np.concatenate([rows.slots, more.slots]),
        np.concatenate([rows.num_known_tokens, more.num_known_tokens]),
        np.concatenate([rows.num_draft_tokens, more.num_draft_tokens]),
        np.concatenate([rows.num_new_blocks, more.num_new_blocks]),
        0,
    )
