"""What runs next: decided from a view of the state, without changing it."""

from dataclasses import dataclass, replace

import numpy as np

from optimist_scheduler.core.requests.view import NO_SLOTS, ScheduleView
from optimist_scheduler.core.schedule.admission import (
    AdmittedRow,
    admit,
    count_demand,
    find_victims,
)
from optimist_scheduler.core.schedule.rows import (
    PlannedRows,
    count_needed_blocks,
    plan_rows,
    plan_scarce_rows,
)
from optimist_scheduler.core.values.arrays import Int32Array, SlotArray


@dataclass(slots=True)
class ScheduleDecision:
    """The rows of the next step."""

    preempted: SlotArray
    """Slots that lose their blocks, the least urgent first."""
    rows: PlannedRows
    """Rows of running requests; each has a known token at least."""
    versions: Int32Array
    """Versions of these rows that this was decided from [num_rows]."""
    admitted: list[AdmittedRow]
    """Rows of requests that take a slot, after the running rows."""
    queue_version: int
    """Version of the waiting requests that this was decided from."""

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return len(self.rows.slots) + len(self.admitted)


def compute_schedule(view: ScheduleView) -> ScheduleDecision:
    """Decides which rows run, with how many known tokens, drafts and new blocks each.

    Running requests come first. Each gets one token; prompts, waiting requests and drafts share the
    rest of the token budget. If the free blocks do not hold the known tokens, the least urgent
    requests are preempted, never the most urgent; drafts get only what is left. What a preempted
    request in flight holds is free only when it has settled: until then rows that lack blocks are
    left out.
    """
    budget, num_free = view.config.max_num_batched_tokens, view.blocks.num_free
    rows = plan_rows(view, view.running, budget, num_free, count_demand(view))
    if rows is None:
        return _preempt(view)
    if not view.waiting:
        return decide(view, rows, [])
    num_free -= rows.num_blocks
    admitted = admit(view, len(view.running), budget - rows.num_tokens, num_free)
    if view.config.policy == "priority" and not admitted:
        preempted = find_victims(view, num_free)
        if len(preempted):
            stays = ~np.isin(rows.slots, preempted)
            return decide(view, rows.select(stays), [], preempted)
    return decide(view, rows, admitted)


def decide(
    view: ScheduleView,
    rows: PlannedRows,
    admitted: list[AdmittedRow],
    preempted: SlotArray = NO_SLOTS,
) -> ScheduleDecision:
    """Returns the decision that rows and admissions make; rows that do not run are left out."""
    if np.count_nonzero(rows.num_known_tokens) < len(rows.slots):
        rows = rows.select(rows.num_known_tokens > 0)
    if admitted:
        rows = replace(rows, num_repeats=0)
    versions = view.table.version.take(rows.slots)
    return ScheduleDecision(preempted, rows, versions, admitted, view.queue_version)


def _preempt(view: ScheduleView) -> ScheduleDecision:
    """Takes blocks from the least urgent requests until the others' known tokens fit."""
    needed, kept = count_needed_blocks(view), len(view.running)
    num_free = view.blocks.num_free
    while kept > 1:
        leaving = np.concatenate([view.fenced, view.running[kept:]])
        if int(needed[:kept].sum()) <= num_free + view.blocks.num_freed_by(leaving):
            break
        kept -= 1
    preempted = view.running[kept:][::-1]
    idle = preempted[view.table.num_plans_in_flight[preempted] == 0]
    num_free += view.blocks.num_freed_by(idle)
    return decide(view, plan_scarce_rows(view, view.running[:kept], num_free), [], preempted)
