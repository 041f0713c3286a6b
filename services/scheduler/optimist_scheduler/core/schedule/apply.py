"""Carries a decision out: slots, blocks and counters change as if every draft were accepted."""

import numpy as np

from optimist_scheduler.core.requests.plan import Admission, Plan
from optimist_scheduler.core.requests.state import SchedulerState, StepInFlight
from optimist_scheduler.core.schedule.decision import ScheduleDecision
from optimist_scheduler.core.values.arrays import Int32Array, SlotArray
from optimist_scheduler.core.windows.window import NO_WINDOW, Window


def apply_schedule(state: SchedulerState, decision: ScheduleDecision) -> Plan | None:
    """Makes the plan of a decision; None, with nothing more in flight, if no row runs."""
    for slot in decision.preempted.tolist():
        state.preempt(slot)
    if decision.num_rows == 0:
        return None
    # Blocks of the prefix cache are taken before others are, which could evict them.
    admissions = [
        Admission(
            state.admit(row.request, row.cached_blocks),
            row.request,
            row.request.token_ids,
            row.cached_blocks,
        )
        for row in decision.admitted
    ]
    slots, known, drafts, num_new = _columns(decision, admissions)
    new_blocks = state.blocks.allocate(slots, num_new)
    state.num_plans += 1
    state.stats.num_plans += 1
    step = _advance(state, slots, known, drafts, decision.rows.num_repeats)
    windows = _take_windows(state)
    # Who takes a slot has nothing to draft from but what comes with it.
    step.windows = [(admission.slot, NO_WINDOW) for admission in admissions] + windows
    state.in_flight.append(step)
    released, state.released_slots = state.released_slots, []
    return Plan(
        state.num_plans,
        released,
        admissions,
        windows,
        slots,
        known,
        drafts,
        num_new,
        new_blocks,
        step.num_repeats,
    )


def _columns(
    decision: ScheduleDecision, admissions: list[Admission]
) -> tuple[SlotArray, Int32Array, Int32Array, Int32Array]:
    """Returns slots, known tokens, drafts and new blocks of all rows."""
    rows = decision.rows
    columns = rows.slots, rows.num_known_tokens, rows.num_draft_tokens, rows.num_new_blocks
    if not admissions:
        return columns
    added = [
        (admission.slot, row.num_known_tokens, row.num_draft_tokens, row.num_new_blocks)
        for admission, row in zip(admissions, decision.admitted, strict=True)
    ]
    slots, known, drafts, num_new = (
        np.concatenate([column, np.array(more, np.int32)])
        for column, more in zip(columns, zip(*added, strict=True), strict=True)
    )
    return slots, known, drafts, num_new


def _advance(
    state: SchedulerState,
    slots: SlotArray,
    known: Int32Array,
    drafts: Int32Array,
    num_repeats: int,
) -> StepInFlight:
    """Moves the counters by all that was planned."""
    table = state.table
    rows = table.gather(slots)
    assumed = rows.num_tokens + rows.num_output_placeholders
    emits: Int32Array = (rows.num_computed_tokens + known == assumed).astype(np.int32)
    num_planned = known + drafts
    table.num_computed_tokens[slots] = rows.num_computed_tokens + num_planned
    table.num_in_flight_tokens[slots] = rows.num_in_flight_tokens + num_planned
    table.num_plans_in_flight[slots] = rows.num_plans_in_flight + 1
    table.num_emits_in_flight[slots] = rows.num_emits_in_flight + emits
    table.num_output_placeholders[slots] = rows.num_output_placeholders + emits * (1 + drafts)
    if num_repeats:
        table.num_lease_tokens[slots] += num_repeats * (1 + drafts)
    return StepInFlight(
        state.num_plans,
        slots,
        table.generation.take(slots),
        known,
        drafts,
        emits,
        num_repeats,
    )


def _take_windows(state: SchedulerState) -> list[tuple[int, Window]]:
    windows: list[tuple[int, Window]] = []
    for slot in state.unsent_windows:
        window = state.table.request(slot).window
        if window is not None:
            windows.append((slot, window))
    state.unsent_windows.clear()
    return windows
