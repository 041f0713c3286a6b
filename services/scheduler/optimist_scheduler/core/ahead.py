"""Whether a plan is worth sending before the results of those in flight are known."""

import numpy as np

from optimist_scheduler.core.schedule import ScheduleDecision
from optimist_scheduler.core.state import SchedulerState

LEAST_CHANCE = 0.8
"""Chance that all drafts in flight are accepted, from which on a row is planned ahead of them."""


def is_worth_sending(state: SchedulerState, decision: ScheduleDecision) -> bool:
    """Tells whether a row of a decision probably profits from being sent now.

    A row whose drafts in flight are rejected has nothing to draft from in the next pass, until it
    is aligned again: then that pass brings one token, and what follows it comes later. If this is
    likely for every row, the result is worth a wait. Otherwise the pass is run for others anyway,
    and the row had better be in it.
    """
    slots = decision.rows.slots
    if not state.in_flight or decision.admitted or len(slots) == 0:
        return True
    table = state.table
    # Mostly one of the first few will do.
    for some in (slots[:16], slots[16:]):
        num_drafts = table.num_output_placeholders[some] - table.num_emits_in_flight[some]
        chances = np.power(state.widths.rate(some), num_drafts)
        if (chances >= LEAST_CHANCE).any():
            return True
    return False
