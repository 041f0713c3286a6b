"""Whether a decision is worth sending now, and what it changes: as if all drafts were accepted."""

import math

import numpy as np

from optimist_scheduler.core.base.values import BoolArray, FloatArray, Int32Array, SlotArray
from optimist_scheduler.core.requests.following import TOKEN
from optimist_scheduler.core.requests.plan import Plan
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.requests.table import Rows
from optimist_scheduler.core.schedule.decision import ScheduleDecision
from optimist_scheduler.core.schedule.rows import SELECTIVE_FACTOR
from optimist_scheduler.core.windows.window import NO_WINDOW, Window

LOOKUP_WORTH = 0.5
"""What a token that a lookup brings is worth: of two, a window would bring one a pass later."""
LEAST_CHANCE = 0.9
"""Chance that all drafts in flight are accepted, from which on a row is planned ahead of them."""


def is_worth_sending(state: SchedulerState, decision: ScheduleDecision) -> bool:
    """Returns whether a row of a decision probably profits from being sent now.

    A row whose drafts in flight are rejected has no window to draft from in the next pass, until
    it is aligned again: then that pass brings one token and what a drafter with a model brings. So
    it is for a row that is to be aligned by what is in flight. If a wait for the result brings
    every row more, it is worth it. Otherwise the pass is run for others anyway, and the row had
    better be in it.
    """
    slots = decision.rows.slots
    if not state.in_flight or decision.admitted or len(slots) == 0:
        return True
    # Mostly the first row will do, and plain numbers are the soonest for one.
    if _is_plainly_likely(state, int(slots[0])):
        return True
    # With nothing to reject in flight, all is certain but where windows are waited for.
    if not any(np.count_nonzero(step.num_draft_tokens) for step in state.in_flight) and (
        np.count_nonzero(state.table.is_worth_a_wait(slots)) < len(slots)
    ):
        return True
    return bool(np.count_nonzero(_gains_nothing(state, slots)))


def _gains_nothing(state: SchedulerState, slots: SlotArray) -> BoolArray:
    """Returns which rows bring as much per time in a pass that is planned now [num_rows].

    If it is planned after the result, and so later, the row drafts from its next window or with the
    drafter, whatever brings more. Now it does the former only if what is in flight is accepted.
    """
    gains = np.maximum(state.table.gain.take(slots), 0) / TOKEN
    drafted = state.find_drafter_gains(slots)
    after = np.maximum(gains, drafted)
    chances = _chances(state, slots)
    now = chances * after + (1 - chances) * drafted
    least = min(LEAST_CHANCE, 1 / (1 + state.table.wait_gain / TOKEN))
    is_as_good: BoolArray = (1 + now) >= least * (1 + after)
    return is_as_good


def _is_plainly_likely(state: SchedulerState, slot: int) -> bool:
    """Returns whether `_chances` of a slot is at least LEAST_CHANCE, if that is plain to see."""
    table, windows = state.table, state.table.windows
    if not state.widths.counts_costs or windows.is_tree[slot]:
        return False
    length, placeholders = int(table.num_tokens[slot]), int(table.num_output_placeholders[slot])
    if table.yields[slot] or table.window_end[slot] <= length + placeholders:
        return False
    end = length + placeholders - int(table.num_emits_in_flight[slot])
    hazards = windows.hazards[slot]
    estimated = float(hazards[end - 1] - hazards[length - 1]) * float(
        state.widths.windows.scales[slot]
    )
    # Less than all that rounding could change.
    return math.exp(-estimated) > LEAST_CHANCE + 1e-5


def _chances(state: SchedulerState, slots: SlotArray) -> FloatArray:
    """Returns how likely the rows go on as they are planned [num_rows]."""
    rows = state.table.gather(slots)
    windows = state.table.windows
    num_drafts = rows.num_output_placeholders - rows.num_emits_in_flight
    if state.widths.counts_costs:
        chances = _estimate_chances(state, rows, num_drafts)
    else:
        chances = np.power(state.widths.windows.rate(slots), num_drafts)
    assumed = rows.assumed_length
    if windows.num_trees:
        assumed = np.where(windows.is_tree[slots], rows.least_length, assumed)
    will_draft = rows.window_end > assumed
    waits = (rows.draft_width > 0) & ~will_draft & (rows.num_plans_in_flight > 0)
    return np.where(waits, 0.0, chances)


def _estimate_chances(state: SchedulerState, rows: Rows, num_drafts: Int32Array) -> FloatArray:
    """Returns how likely what is in flight is accepted, by what windows say [num_rows]."""
    windows, slots, scales = state.table.windows, rows.slots, state.widths.windows.scales
    # Of a tree, what is in flight leads to its likeliest path's end at most.
    inside = np.maximum(np.minimum(rows.window_end - rows.num_tokens, num_drafts), 0)
    cells, hazards = windows.cells(slots, rows.num_tokens), windows.hazards_before
    estimated = (hazards.take(cells + inside) - hazards.take(cells)) * scales[slots]
    chances: FloatArray = np.exp(-estimated)
    is_unknown = inside < num_drafts
    if is_unknown.any():
        known = state.widths.windows.rate(slots) ** num_drafts
        chances = np.where(is_unknown & ~windows.is_tree[slots], known, chances)
    return chances


def apply_schedule(state: SchedulerState, decision: ScheduleDecision) -> Plan | None:
    """Makes the plan of a decision; None, with nothing more in flight, if no row runs."""
    for slot in decision.preempted.tolist():
        state.preempt(slot)
    if decision.num_rows == 0:
        return None
    # Blocks of the prefix cache are taken before others are, which could evict them.
    for admission in decision.admitted:
        admission.slot = state.admit(admission.request, admission.cached_blocks)
    slots, known, drafts, num_new = _columns(decision)
    new_blocks = state.blocks.allocate(slots, num_new)
    state.num_plans += 1
    state.stats.num_plans += 1
    emits = _advance(state, slots, known, drafts)
    released, state.released_slots = state.released_slots, []
    form_width = state.table.form_width.take(slots)
    plan = Plan(
        state.num_plans,
        released,
        decision.admitted,
        _take_windows(state),
        slots,
        known,
        drafts,
        num_new,
        new_blocks,
        state.table.generation.take(slots),
        _find_least_chance(state, form_width, known, drafts),
        _find_most_of_drafter(state, slots, len(decision.admitted)),
        state.config.form_beside if np.count_nonzero(form_width) else 0,
        bool(state.in_flight),
        emits,
    )
    state.in_flight.append(plan)
    return plan


def _find_least_chance(
    state: SchedulerState, form_width: Int32Array, known: Int32Array, drafts: Int32Array
) -> float:
    of_form = (form_width > 0) & (drafts > 0)
    has_form = np.count_nonzero(of_form) > 0
    if state.config.pads_passes or not (has_form or state.config.looks_up_selectively):
        return 0.0
    if has_form:
        # Few of those that are allowed are made.
        drafts = np.where(of_form, -(-drafts // SELECTIVE_FACTOR), drafts)
    threshold = state.widths.find_threshold(len(known), int(known.sum()), int(drafts.sum()))
    # No window would bring what the form of an answer brings.
    return threshold if has_form else threshold / LOOKUP_WORTH


def _find_most_of_drafter(state: SchedulerState, slots: SlotArray, num_admitted: int) -> int | None:
    drafter = state.config.drafter
    if drafter is None or drafter.is_lookup:
        return None
    widths = state.table.drafter_width.take(slots)
    # Requests that begin pay for its time, and were not there when it was weighed.
    if np.count_nonzero(widths[: len(slots) - num_admitted]) < num_admitted:
        return 0
    return int(np.maximum.reduce(widths))


def _columns(decision: ScheduleDecision) -> tuple[SlotArray, Int32Array, Int32Array, Int32Array]:
    """Returns slots, known tokens, drafts and new blocks of all rows."""
    rows = decision.rows
    if not decision.admitted:
        return rows.slots, rows.num_known_tokens, rows.num_draft_tokens, rows.num_new_blocks
    added = [
        (each.slot, each.num_known_tokens, each.num_draft_tokens, each.num_new_blocks)
        for each in decision.admitted
    ]
    slots, known, drafts, num_new = np.array(added, np.int32).T
    return (
        np.concatenate([rows.slots, slots]),
        np.concatenate([rows.num_known_tokens, known]),
        np.concatenate([rows.num_draft_tokens, drafts]),
        np.concatenate([rows.num_new_blocks, num_new]),
    )


def _advance(
    state: SchedulerState, slots: SlotArray, known: Int32Array, drafts: Int32Array
) -> Int32Array:
    """Moves the counters by all that was planned; returns which rows emit, see `Plan.emits`."""
    table = state.table
    rows = table.gather_counters(slots)
    computed, placeholders = rows.num_computed_tokens, rows.num_output_placeholders
    emits: Int32Array = (computed + known == rows.assumed_length).astype(np.int32)
    num_planned = known + drafts
    table.num_computed_tokens[slots] = computed + num_planned
    table.num_in_flight_tokens[slots] = rows.num_in_flight_tokens + num_planned
    table.num_plans_in_flight[slots] = rows.num_plans_in_flight + 1
    table.num_emits_in_flight[slots] = rows.num_emits_in_flight + emits
    table.num_output_placeholders[slots] = placeholders + emits * (1 + drafts)
    return emits


def _take_windows(state: SchedulerState) -> list[tuple[int, Window]]:
    windows: list[tuple[int, Window]] = []
    for slot in state.unsent_windows:
        window = state.table.request(slot).window
        if state.table.yields[slot]:
            window = NO_WINDOW
        if window is not None:
            windows.append((slot, window))
    state.unsent_windows.clear()
    return windows
