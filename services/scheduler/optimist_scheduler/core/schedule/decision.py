"""What runs next: decided without a change, perhaps ahead of results, and then repaired."""

from dataclasses import dataclass

import numpy as np

from optimist_scheduler.core.base.values import Int32Array, SchedulerStats, SlotArray
from optimist_scheduler.core.requests.plan import NO_SLOTS, Admission
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.requests.table import SlotStatus
from optimist_scheduler.core.schedule.rows import (
    PlannedRows,
    admit,
    count_needed_blocks,
    find_candidates,
    find_victims,
    plan_rows,
    plan_scarce_rows,
    share_prompts,
)


@dataclass(slots=True)
class ScheduleDecision:
    """The rows of the next step."""

    preempted: SlotArray
    """Slots that lose their blocks, the least urgent first."""
    rows: PlannedRows
    """Rows of running requests; each has a known token at least."""
    versions: Int32Array
    """Versions of these rows that this was decided from [num_rows]."""
    admitted: list[Admission]
    """Rows of requests that take a slot, after the running rows."""
    queue_version: int
    """Version of the waiting requests that this was decided from."""

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return len(self.rows.slots) + len(self.admitted)


def compute_schedule(state: SchedulerState) -> ScheduleDecision:
    """Decides which rows run, with how many known tokens, drafts and new blocks each.

    Each running request gets one token; prompts, those of waiting requests too, and drafts share
    the rest of the token budget. If the free blocks do not hold the known tokens, the least urgent
    requests are preempted, never the most urgent; drafts get only what is left. What a preempted
    request in flight holds is free only when it has settled: until then rows that lack blocks are
    left out.
    """
    budget, num_free = state.config.max_num_batched_tokens, state.blocks.num_free
    candidates = find_candidates(state)
    rows = plan_rows(state, state.running, budget, num_free, candidates)
    if rows is None:
        return _preempt(state)
    if not state.admissible:
        return decide(state, rows, [])
    num_free -= rows.num_blocks
    admitted = admit(state, candidates, rows.shares, budget - rows.num_tokens, num_free)
    if state.config.policy == "priority" and not admitted:
        preempted = find_victims(state, num_free)
        if len(preempted):
            stays = ~np.isin(rows.slots, preempted)
            return decide(state, rows.select(stays), [], preempted)
    return decide(state, rows, admitted)


def decide(
    state: SchedulerState,
    rows: PlannedRows,
    admitted: list[Admission],
    preempted: SlotArray = NO_SLOTS,
) -> ScheduleDecision:
    """Returns the decision that rows and admissions make; rows that do not run are left out."""
    rows = rows.select(rows.num_known_tokens > 0)
    versions = state.table.version.take(rows.slots)
    return ScheduleDecision(preempted, rows, versions, admitted, state.waiting.version)


def _preempt(state: SchedulerState) -> ScheduleDecision:
    """Takes blocks from the least urgent requests until the others' known tokens fit."""
    needed, kept = count_needed_blocks(state), len(state.running)
    num_free = state.blocks.num_free
    while kept > 1:
        leaving = np.concatenate([state.fenced_slots, state.running[kept:]])
        if int(needed[:kept].sum()) <= num_free + state.blocks.num_freed_by(leaving):
            break
        kept -= 1
    preempted = state.running[kept:][::-1]
    idle = preempted[state.table.num_plans_in_flight[preempted] == 0]
    num_free += state.blocks.num_freed_by(idle)
    return decide(state, plan_scarce_rows(state, state.running[:kept], num_free), [], preempted)


def repair(
    state: SchedulerState, decision: ScheduleDecision, stats: SchedulerStats
) -> ScheduleDecision | None:
    """Drops or computes again the rows whose version moved; the rest stays.

    Waiting requests are chosen anew: they may have changed, and so may the room for them. None if
    it is cheaper to decide anew. Counts in `stats` what came out.
    """
    rows = decision.rows
    stays = state.table.version[rows.slots] == decision.versions
    if state.config.num_pipeline_stages > 1:
        # Decided for when the oldest plan has settled: a command may have come before its result.
        stays &= state.table.num_plans_in_flight[rows.slots] == 0
    is_same_queue = state.waiting.version == decision.queue_version
    stale = rows.slots[~stays]
    if is_same_queue and not len(stale):
        stats.num_preschedule_hits += 1
        stats.num_prescheduled_rows += decision.num_rows
        return decision
    again = stale[state.table.status[stale] == SlotStatus.RUNNING]
    if len(stale):
        rows = rows.select(stays)
    budget = state.config.max_num_batched_tokens - rows.num_tokens
    num_free = state.blocks.num_free - rows.num_blocks
    candidates = find_candidates(state)
    lengths = [candidate.num_left_tokens for candidate in candidates]
    if not is_same_queue and sum(lengths) > budget and rows.num_tokens > len(rows.slots):
        # Other rows are to leave some of the pass to prompts that came.
        stats.preschedule_discards["prompts"] += 1
        return None
    if len(again):
        more = plan_rows(state, again, budget, num_free, candidates)
        if more is None:
            stats.preschedule_discards["memory"] += 1
            return None
        rows, shares = _join(rows, more), more.shares
        budget, num_free = budget - more.num_tokens, num_free - more.num_blocks
    else:
        shares = share_prompts(budget, [each.request.order for each in candidates], lengths)
    admitted = admit(state, candidates, shares, budget, num_free)
    repaired = decide(state, rows, admitted)
    if repaired.num_rows == 0:
        stats.preschedule_discards["requests over"] += 1
        return None
    _count_repair(decision, repaired, len(stale), len(again), stats)
    return repaired


def _count_repair(
    decision: ScheduleDecision,
    repaired: ScheduleDecision,
    num_stale: int,
    num_again: int,
    stats: SchedulerStats,
) -> None:
    before = {row.request.request_id for row in decision.admitted}
    now = {row.request.request_id for row in repaired.admitted}
    num_dropped = num_stale - num_again + len(before - now)
    num_added = len(now - before)
    if num_dropped or num_again or num_added:
        stats.num_preschedule_repairs += 1
    else:
        stats.num_preschedule_hits += 1
    stats.num_prescheduled_rows += decision.num_rows
    stats.num_dropped_rows += num_dropped
    stats.num_recomputed_rows += num_again
    stats.num_added_rows += num_added


def _join(rows: PlannedRows, more: PlannedRows) -> PlannedRows:
    return PlannedRows(
        np.concatenate([rows.slots, more.slots]),
        np.concatenate([rows.num_known_tokens, more.num_known_tokens]),
        np.concatenate([rows.num_draft_tokens, more.num_draft_tokens]),
        np.concatenate([rows.num_new_blocks, more.num_new_blocks]),
        rows.num_tokens + more.num_tokens,
        rows.num_blocks + more.num_blocks,
    )


class Prepared:
    """At most one decision that was computed ahead of results, and what became of all of them."""

    def __init__(self, stats: SchedulerStats) -> None:
        self._stats = stats
        self.decision: ScheduleDecision | None = None

    def keep(self, decision: ScheduleDecision) -> None:
        """Keeps a decision if it has rows and takes blocks away from nobody.

        Results to come may give some back.
        """
        if decision.num_rows == 0:
            return
        self._stats.num_prescheduled += 1
        if len(decision.preempted):
            self._stats.preschedule_discards["preemption"] += 1
        elif decision.rows.is_short:
            self._stats.preschedule_discards["memory"] += 1
        else:
            self.decision = decision

    def take(self, state: SchedulerState) -> ScheduleDecision | None:
        """Returns the decision, repaired where something changed; None if that is in vain."""
        decision, self.decision = self.decision, None
        return None if decision is None else repair(state, decision, self._stats)

    def discard(self, reason: str) -> None:
        """Forgets the decision, if there is one."""
        if self.decision is not None:
            self.decision = None
            self._stats.preschedule_discards[reason] += 1
