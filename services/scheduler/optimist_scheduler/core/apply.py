"""Carries a decision out: slots, blocks and counters change as if every draft were accepted."""

import numpy as np

from optimist_scheduler.core.plan import Plan, StepInFlight
from optimist_scheduler.core.requests import Int32Array
from optimist_scheduler.core.schedule import ScheduleDecision
from optimist_scheduler.core.state import SchedulerState
from optimist_scheduler.core.window import Window


def apply_schedule(state: SchedulerState, decision: ScheduleDecision) -> Plan | None:
    """Makes the plan of a decision; None, with nothing in flight, if no row runs."""
    for slot in decision.preempted.tolist():
        state.preempt(state.table.request(slot))
    slots, known, drafts, num_new = _rows(state, decision)
    if len(slots) == 0:
        return None
    new_blocks = state.blocks.allocate(slots, num_new)
    emits = _advance(state, slots, known, drafts)
    state.num_plans += 1
    state.in_flight = StepInFlight(
        state.num_plans, slots, drafts, emits, state.table.window_shift[slots]
    )
    released, state.released_slots = state.released_slots, []
    admissions = [row.request for row in decision.admitted]
    windows = _take_windows(state)
    return Plan(
        state.num_plans, released, admissions, windows, slots, known, drafts, num_new, new_blocks
    )


def _rows(
    state: SchedulerState, decision: ScheduleDecision
) -> tuple[Int32Array, Int32Array, Int32Array, Int32Array]:
    """Admits, and returns slots, known tokens, drafts and new blocks of all rows."""
    columns = (
        decision.slots,
        decision.num_known_tokens,
        decision.num_draft_tokens,
        decision.num_new_blocks,
    )
    if not decision.admitted:
        return columns
    added: list[tuple[int, int, int, int]] = []
    for row in decision.admitted:
        state.waiting.remove(row.request)
        slot = state.admit(row.request)
        added.append((slot, row.num_known_tokens, row.num_draft_tokens, row.num_new_blocks))
    slots, known, drafts, num_new = (
        np.concatenate([column, np.array(more, np.int32)])
        for column, more in zip(columns, zip(*added, strict=True), strict=True)
    )
    return slots, known, drafts, num_new


def _advance(
    state: SchedulerState, slots: Int32Array, known: Int32Array, drafts: Int32Array
) -> Int32Array:
    """Moves the counters by all that was planned; returns which rows emit."""
    table = state.table
    assumed = table.num_tokens[slots] + table.num_output_placeholders[slots]
    emits: Int32Array = (table.num_computed_tokens[slots] + known == assumed).astype(np.int32)
    table.num_computed_tokens[slots] += known + drafts
    table.num_output_placeholders[slots] += emits * (1 + drafts)
    return emits


def _take_windows(state: SchedulerState) -> list[tuple[int, Window]]:
    windows: list[tuple[int, Window]] = []
    for slot in state.unsent_windows:
        window = state.table.request(slot).window
        if window is not None and window.token_ids:
            windows.append((slot, window))
    state.unsent_windows.clear()
    return windows
