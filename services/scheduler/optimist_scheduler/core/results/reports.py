"""What is reported of new tokens besides what they are: how likely they were, and where from."""

import numpy as np

from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.requests.state import SchedulerState, StepInFlight
from optimist_scheduler.core.requests.table import Request
from optimist_scheduler.core.results.new_tokens import NewTokens
from optimist_scheduler.core.values.arrays import BoolArray
from optimist_scheduler.core.values.output import ReportedLogprobs, ReportedPositions

MISSING = "the worker did not report the log-probabilities of this request"


def report_logprobs(
    state: SchedulerState, step: StepInFlight, new: NewTokens, alive: BoolArray, result: StepResult
) -> tuple[list[ReportedLogprobs], dict[int, str]]:
    """Returns the log-probabilities of the tokens that are delivered.

    Each position of a prompt is reported once, in order, also where it is computed again.

    Args:
        state: The state.
        step: The plan.
        new: Its tokens, cut where requests end. Those that lack what they want end otherwise.
        alive: Which rows belong to requests that are not over [num_rows].
        result: The result.

    Returns:
        What is reported, and by slot what is wrong with requests that lack what they want.
    """
    reported: list[ReportedLogprobs] = []
    wrong: dict[int, str] = {}
    rows = {slot: row for row, slot in enumerate(new.slots.tolist())}
    for slot in step.slots[alive].tolist():
        if slot not in state.logprob_slots or slot in result.errors:
            continue
        request, logprobs = state.table.request(slot), result.logprobs.get(slot)
        number = int(new.num_tokens[rows[slot]]) if slot in rows else 0
        if logprobs is not None:
            first, end = logprobs.first_prompt_position, logprobs.end
            if logprobs.num_prompt_tokens and first <= request.num_reported_tokens + 1:
                num_skipped = min(request.num_reported_tokens + 1, end) - first
                request.num_reported_tokens = max(request.num_reported_tokens, end - 1)
            else:
                # Without those before them they are of no use.
                num_skipped = logprobs.num_prompt_tokens
            logprobs = logprobs.cut(num_skipped, number)
            if len(logprobs.logprobs):
                reported.append(ReportedLogprobs(request.owner, request.handle, logprobs))
        if number and _lacks(request, 0 if logprobs is None else logprobs.num_tokens, number):
            wrong[slot] = MISSING
            new.reasons.pop(rows[slot], None)
    return reported, wrong


def _lacks(request: Request, num_reported: int, num_tokens: int) -> bool:
    """Returns whether a request that gets tokens lacks what it wants."""
    wants_output = request.sampling.num_logprobs is not None
    return (wants_output and num_reported < num_tokens) or request.wants_prompt_logprobs


def report_positions(state: SchedulerState, new: NewTokens) -> list[ReportedPositions]:
    """Returns where accepted drafts were read from, to requests that want to know.

    Args:
        state: The state.
        new: The tokens.
    """
    table, reported = state.table, list[ReportedPositions]()
    ends = np.cumsum(new.num_accepted_tokens)
    rows = (new.num_accepted_tokens > 0) & np.isin(new.slots, [*state.position_slots])
    for row in np.flatnonzero(rows).tolist():
        slot, end = int(new.slots[row]), int(ends[row])
        positions = new.nodes.accepted_positions[end - int(new.num_accepted_tokens[row]) : end]
        owner, handle = int(table.owner[slot]), int(table.handle[slot])
        reported.append(ReportedPositions(owner, handle, positions))
    return reported
