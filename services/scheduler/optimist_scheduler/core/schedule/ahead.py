"""Whether a plan is worth sending before the results of those in flight are known."""

import numpy as np

from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.requests.table import Rows
from optimist_scheduler.core.schedule.decision import ScheduleDecision
from optimist_scheduler.core.values.arrays import FloatArray, Int32Array, SlotArray

LEAST_CHANCE = 0.9
"""Chance that all drafts in flight are accepted, from which on a row is planned ahead of them."""


def is_worth_sending(state: SchedulerState, decision: ScheduleDecision) -> bool:
    """Tells whether a row of a decision probably profits from being sent now.

    A row whose drafts in flight are rejected has nothing to draft from in the next pass, until it
    is aligned again: then that pass brings one token, and what follows it comes later. So it is
    for a row that is to be aligned by what is in flight. If this is likely for every row, the
    result is worth a wait. Otherwise the pass is run for others anyway, and the row had better be
    in it. A row that the worker's drafter may draft for always has something to draft from.
    """
    slots = decision.rows.slots
    if not state.in_flight or decision.admitted or len(slots) == 0:
        return True
    # With nothing to reject in flight, all is certain but where windows are waited for.
    if not any(np.count_nonzero(step.num_draft_tokens) for step in state.in_flight) and (
        np.count_nonzero(state.table.is_worth_a_wait(slots)) < len(slots)
    ):
        return True
    # Mostly one of the first few will do.
    return any(bool((_chances(state, some) >= LEAST_CHANCE).any()) for some in (slots[:16], slots))


def _chances(state: SchedulerState, slots: SlotArray) -> FloatArray:
    """Returns how likely the rows go on as they are planned [num_rows]."""
    rows = state.table.gather(slots)
    windows = state.table.windows
    num_drafts = rows.num_output_placeholders - rows.num_emits_in_flight
    if state.widths.goes_by_value and windows.num_valued:
        chances = _estimate_chances(state, slots, rows, num_drafts)
    else:
        chances = np.power(state.widths.rate(slots), num_drafts)
    assumed = rows.num_tokens + rows.num_output_placeholders
    if windows.trees:
        emitted = rows.num_tokens + rows.num_emits_in_flight
        assumed = np.where(windows.is_tree[slots], emitted, assumed)
    will_draft = rows.window_end > assumed
    waits = (rows.draft_width > 0) & ~will_draft & (rows.num_plans_in_flight > 0)
    chances = np.where(waits & state.table.is_worth_a_wait(slots), 0.0, chances)
    if state.config.drafter is not None:
        return np.where(rows.drafter_width > 0, 1.0, chances)
    return chances


def _estimate_chances(
    state: SchedulerState, slots: SlotArray, rows: Rows, num_drafts: Int32Array
) -> FloatArray:
    """Returns how likely what is in flight is accepted, by what windows say [num_rows]."""
    windows = state.table.windows
    # Of a tree, what is in flight leads to its likeliest path's end at most.
    inside = np.maximum(np.minimum(rows.window_end - rows.num_tokens, num_drafts), 0)
    before = windows.cells(slots, rows.num_tokens - 1)
    hazards = windows.hazards.reshape(-1)
    estimated = (hazards.take(before + inside) - hazards.take(before)) * state.widths.scales[slots]
    chances: FloatArray = np.exp(-estimated)
    is_unknown = (inside < num_drafts) | ~windows.is_valued[slots]
    if is_unknown.any():
        known = state.widths.rate(slots) ** num_drafts
        chances = np.where(is_unknown & ~windows.is_tree[slots], known, chances)
    return chances
