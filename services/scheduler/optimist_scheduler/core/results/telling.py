"""What is told of new tokens besides what they are: how likely they were, and where they stand."""

import numpy as np

from optimist_common.draft_source import DraftSource
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.requests.state import SchedulerState, StepInFlight
from optimist_scheduler.core.requests.table import Request
from optimist_scheduler.core.results.new_tokens import NewTokens
from optimist_scheduler.core.results.verified import find_kept_positions
from optimist_scheduler.core.values.arrays import BoolArray, Int32Array
from optimist_scheduler.core.values.output import ToldLogprobs, ToldPositions
from optimist_scheduler.core.windows.window import NO_POSITION

MISSING = "the worker did not tell the log-probabilities of this request"


def tell_logprobs(
    state: SchedulerState, step: StepInFlight, new: NewTokens, alive: BoolArray, result: StepResult
) -> tuple[list[ToldLogprobs], dict[int, str]]:
    """Returns the log-probabilities of the tokens that are delivered.

    Of a prompt each position is told once, in order, also where it is computed again.

    Args:
        state: The state.
        step: The plan.
        new: Its tokens, cut where requests end. Those that were not told what they want end
            otherwise.
        alive: Which rows belong to requests that are not over [num_rows].
        result: The result.

    Returns:
        What is told, and by slot what is wrong with requests that were not told what they want.
    """
    told: list[ToldLogprobs] = []
    wrong: dict[int, str] = {}
    rows = {slot: row for row, slot in enumerate(new.slots.tolist())}
    for slot in step.slots[alive].tolist():
        if slot not in state.logprob_slots or slot in result.errors:
            continue
        request, logprobs = state.table.request(slot), result.logprobs.get(slot)
        number = int(new.num_tokens[rows[slot]]) if slot in rows else 0
        if logprobs is not None:
            first, end = logprobs.first_prompt_position, logprobs.end
            if logprobs.num_prompt_tokens and first <= request.num_told_tokens + 1:
                num_skipped = min(request.num_told_tokens + 1, end) - first
                request.num_told_tokens = max(request.num_told_tokens, end - 1)
            else:
                # Without those before them they are of no use.
                num_skipped = logprobs.num_prompt_tokens
            logprobs = logprobs.cut(num_skipped, number)
            if len(logprobs.logprobs):
                told.append(ToldLogprobs(request.owner, request.handle, logprobs))
        if number and _lacks(request, 0 if logprobs is None else logprobs.num_tokens, number):
            wrong[slot] = MISSING
            new.reasons.pop(rows[slot], None)
    return told, wrong


def _lacks(request: Request, num_told: int, num_tokens: int) -> bool:
    """Tells whether a request that gets tokens is not told what it wants."""
    wants_output = request.sampling.num_logprobs is not None
    return (wants_output and num_told < num_tokens) or request.wants_prompt_logprobs


def tell_positions(
    state: SchedulerState, step: StepInFlight, new: NewTokens
) -> list[ToldPositions]:
    """Returns where accepted drafts stand in predictions and prompts, before windows move on.

    Args:
        state: The state; the new tokens are part of it.
        step: The plan.
        new: Its tokens.
    """
    table = state.table
    rows = np.flatnonzero(
        (new.num_accepted_tokens > 0) & np.isin(new.slots, [*state.position_slots])
    )
    told: list[ToldPositions] = []
    for row in rows.tolist():
        slot, number = int(new.slots[row]), int(new.num_accepted_tokens[row])
        positions: Int32Array = np.full(number, NO_POSITION, np.int32)
        if new.draft_sources[row] == DraftSource.PREDICTION:
            positions = find_kept_positions(state, step, new, row)
        told.append(ToldPositions(int(table.owner[slot]), int(table.handle[slot]), positions))
    return told
