"""What a step brings to the owners of requests, and what proposers are sent of it."""

from collections.abc import Sequence

import numpy as np

from optimist_common.drafts import PREDICTION
from optimist_scheduler.core.base.values import (
    NO_OUTPUTS,
    BoolArray,
    FinishReason,
    Int64Array,
    ReportedLogprobs,
    ReportedPositions,
    StepOutputs,
)
from optimist_scheduler.core.requests.ends import finish
from optimist_scheduler.core.requests.following import find_interval, is_due
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.results.tokens import NewTokens

MISSING = "the worker did not report the log-probabilities of this request"


def report_logprobs(
    state: SchedulerState, step: Plan, new: NewTokens, alive: BoolArray, result: StepResult
) -> tuple[list[ReportedLogprobs], dict[int, str]]:
    """Returns the log-probabilities that are delivered, and by slot what requests lack of them.

    Each position of a prompt is reported once, in order, also where it is computed again.
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
    """Returns where accepted drafts were read from, to requests that want to know."""
    table = state.table
    reported: list[ReportedPositions] = []
    ends = np.cumsum(new.num_accepted_tokens)
    rows = (new.num_accepted_tokens > 0) & np.isin(new.slots, [*state.position_slots])
    for row in np.flatnonzero(rows).tolist():
        slot, end = int(new.slots[row]), int(ends[row])
        positions = new.nodes.accepted_positions[end - int(new.num_accepted_tokens[row]) : end]
        owner, handle = int(table.owner[slot]), int(table.handle[slot])
        reported.append(ReportedPositions(owner, handle, positions))
    return reported


def build_outputs(
    state: SchedulerState,
    new: NewTokens,
    errors: dict[int, str],
    logprobs: Sequence[ReportedLogprobs] = (),
    positions: Sequence[ReportedPositions] = (),
) -> StepOutputs:
    """Ends requests and returns what their owners get."""
    table = state.table
    observed = _find_observed(state, new)
    observed_ids: list[str] = []
    earlier: dict[int, list[int]] = {}
    if len(observed):
        slots = new.slots[observed]
        observed_ids = [table.request_ids[slot] for slot in slots.tolist()]
        earlier = _find_earlier(state, new, observed)
        table.num_observed_tokens[slots] = table.num_tokens[slots]
    owners, handles = table.owner.take(new.slots), table.handle.take(new.slots)
    sources = new.draft_sources
    if new.nodes.draft_positions is not None:
        sources = np.where(new.nodes.draft_positions >= 0, PREDICTION, sources)
    ended = [
        finish(state, table.request(int(new.slots[row])), reason)
        for row, reason in new.reasons.items()
    ]
    for slot, message in errors.items():
        ended.append(finish(state, table.request(slot), FinishReason.ERROR, message))
    return StepOutputs(
        owners,
        handles,
        new.num_tokens,
        new.token_ids,
        new.num_accepted_tokens,
        sources,
        new.num_accepted_tokens - new.num_base_accepted_tokens,
        observed,
        observed_ids,
        earlier,
        ended,
        logprobs,
        positions,
    )


def _find_observed(state: SchedulerState, new: NewTokens) -> Int64Array:
    """Returns the rows of requests that go on and whose tokens proposers are sent now."""
    table, slots = state.table, new.slots
    if not table.num_followed:
        return NO_OUTPUTS.observed_rows
    lengths = table.num_tokens.take(slots)
    is_observed = is_due(
        table.gain.take(slots),
        table.num_predicted_tokens.take(slots),
        lengths - table.num_prompt_tokens.take(slots),
        lengths - table.num_observed_tokens.take(slots),
        wait_gain=table.wait_gain,
        is_turn=state.is_turn(find_interval(len(slots))),
    )
    if new.reasons:
        is_observed[list(new.reasons)] = False
    return is_observed.nonzero()[0]


def _find_earlier(state: SchedulerState, new: NewTokens, rows: Int64Array) -> dict[int, list[int]]:
    """Returns tokens of earlier steps that proposers were not sent, by row."""
    table = state.table
    slots, ends = new.slots[rows], new.starts[rows]
    begins = table.num_observed_tokens[slots]
    return {
        int(rows[each]): table.token_ids[slots[each], begins[each] : ends[each]].tolist()
        for each in np.flatnonzero(begins < ends).tolist()
    }
