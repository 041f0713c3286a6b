"""Keeps the new tokens of a step, up to where requests end, and hands them out as columns."""

from dataclasses import dataclass, field

import numpy as np

from optimist_scheduler.core.account import num_rejected_tokens
from optimist_scheduler.core.output import Ended, Finished, FinishReason, StepOutputs
from optimist_scheduler.core.plan import StepResult
from optimist_scheduler.core.requests import NO_SLOT, BoolArray, Int32Array, Request
from optimist_scheduler.core.state import SchedulerState, StepInFlight


@dataclass(slots=True)
class NewTokens:
    """The rows of a step that got tokens."""

    slots: Int32Array
    """[num_rows]"""
    starts: Int32Array
    """Length of each sequence before the step [num_rows]."""
    num_tokens: Int32Array
    """New tokens per row [num_rows]."""
    num_drafted_tokens: Int32Array
    num_accepted_tokens: Int32Array
    window_shifts: Int32Array
    """See StepInFlight [num_rows]."""
    token_ids: Int32Array
    """The new tokens, row after row [num_new]."""
    rows: Int32Array
    """Row of each token [num_new]."""
    places: Int32Array
    """Place of each token in its sequence [num_new]."""
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    """Why requests end with their last token, by slot."""


def find_new_tokens(
    state: SchedulerState, step: StepInFlight, alive: BoolArray, result: StepResult
) -> NewTokens:
    """Returns the tokens of the requests that are not over, cut where the requests end."""
    counts, token_ids = result.num_emitted_tokens, result.token_ids
    slots, drafted, accepted = step.slots, result.num_drafted_tokens, result.num_accepted_tokens
    shifts, gets = step.window_shifts, alive & (counts > 0)
    if not gets.all():
        token_ids = token_ids[np.repeat(gets, counts)]
        slots, counts, drafted = slots[gets], counts[gets], drafted[gets]
        accepted, shifts = accepted[gets], shifts[gets]
    starts = state.table.num_tokens[slots]
    rows = np.repeat(np.arange(len(slots), dtype=np.int32), counts)
    firsts = np.cumsum(counts, dtype=np.int32) - counts
    places = np.arange(len(token_ids), dtype=np.int32) + (starts - firsts)[rows]
    new = NewTokens(slots, starts, counts, drafted, accepted, shifts, token_ids, rows, places)
    _cut_at_stops(state, new)
    is_full = new.starts + new.num_tokens >= state.table.max_length[slots]
    if is_full.any():
        for slot in slots[is_full].tolist():
            new.reasons.setdefault(slot, FinishReason.LENGTH)
    return new


def _cut_at_stops(state: SchedulerState, new: NewTokens) -> None:
    may_stop = state.stops.find(new.token_ids)
    if not may_stop.any():
        return
    counts = new.num_tokens.copy()
    for row in np.unique(new.rows[may_stop]).tolist():
        slot, start = int(new.slots[row]), int(new.starts[row])
        request = state.table.request(slot)
        index = find_stop(request, start, new.token_ids[new.rows == row].tolist())
        if index is not None:
            counts[row] = index + 1
            new.reasons[slot] = FinishReason.STOP
    kept = new.places - new.starts[new.rows] < counts[new.rows]
    new.token_ids, new.rows, new.places = new.token_ids[kept], new.rows[kept], new.places[kept]
    new.num_tokens = counts
    new.num_accepted_tokens = np.minimum(new.num_accepted_tokens, counts)


def find_stop(request: Request, length: int, token_ids: list[int]) -> int | None:
    """Returns which of a request's new tokens ends it, if one does.

    Args:
        request: The request.
        length: Tokens that it had before, prompt and output.
        token_ids: The new ones.
    """
    for index, token_id in enumerate(token_ids):
        if token_id in request.stop_token_ids and length + index + 1 >= request.min_length:
            return index
    return None


def keep(state: SchedulerState, new: NewTokens) -> None:
    """Appends the tokens to their sequences and to the accounts of their predictions."""
    table = state.table
    table.token_ids[new.slots[new.rows], new.places] = new.token_ids
    table.num_tokens[new.slots] = new.starts + new.num_tokens
    table.num_passes[new.slots] += 1
    drafted = new.num_drafted_tokens > 0
    if drafted.any():
        state.accounts.record(
            new.slots[drafted],
            (new.starts + new.window_shifts)[drafted],
            new.num_drafted_tokens[drafted],
            new.num_accepted_tokens[drafted],
        )


def follow_windows(state: SchedulerState, new: NewTokens) -> None:
    """Compares the tokens with the windows; one that was wrong is not drafted from any more."""
    table = state.table
    ends = table.window_end[new.slots]
    inside = np.minimum(ends, new.starts + new.num_tokens)
    inside = inside - np.maximum(table.window_start[new.slots], new.starts)
    has_window = inside > 0
    if not has_window.any():
        return
    slots = new.slots[new.rows]
    wrong = (table.expected[slots, new.places] != new.token_ids) & (new.places < ends[new.rows])
    wrong &= new.places >= table.window_start[slots]
    num_wrong = np.bincount(new.rows[wrong], minlength=len(new.slots))[has_window]
    table.window_end[slots[wrong]] = 0
    # Where nothing was drafted, what was emitted tells as much.
    inside, drafted = inside[has_window], new.num_drafted_tokens[has_window]
    accepted = np.where(drafted > 0, new.num_accepted_tokens[has_window], inside - num_wrong)
    state.widths.observe(new.slots[has_window], np.where(drafted > 0, drafted, inside), accepted)


def build_outputs(state: SchedulerState, new: NewTokens, errors: dict[int, str]) -> StepOutputs:
    """Ends requests and returns what their owners get.

    Args:
        state: The state.
        new: The tokens, which were kept.
        errors: What went wrong, by slot, for requests that are not over.
    """
    table = state.table
    observed: list[tuple[str, list[int]]] = []
    predicted = table.num_predicted_tokens[new.slots] > 0
    if predicted.any():
        tokens, ends = new.token_ids.tolist(), np.cumsum(new.num_tokens)
        for slot, start, end in zip(
            new.slots[predicted].tolist(),
            (ends - new.num_tokens)[predicted].tolist(),
            ends[predicted].tolist(),
            strict=True,
        ):
            if slot not in new.reasons:
                observed.append((table.request(slot).request_id, tokens[start:end]))
    owners, handles = table.owner[new.slots], table.handle[new.slots]
    ended = [end(state, table.request(slot), reason) for slot, reason in new.reasons.items()]
    for slot, message in errors.items():
        # What the pass wrote may be anything: it must not enter the prefix cache.
        table.num_computed_tokens[slot] = 0
        ended.append(end(state, table.request(slot), FinishReason.ERROR, message))
    return StepOutputs(
        owners, handles, new.num_tokens, new.token_ids, new.num_accepted_tokens, observed, ended
    )


def end(state: SchedulerState, request: Request, reason: FinishReason, message: str = "") -> Ended:
    """Ends a request and returns its account."""
    if request.slot != NO_SLOT:
        state.accounts.close(request.slot, request)
        request.num_passes = int(state.table.num_passes[request.slot])
    state.end(request)
    return tell_end(request, reason, message)


def tell_end(request: Request, reason: FinishReason, message: str) -> Ended:
    """Returns the account of a request that is over."""
    finished = Finished(
        reason,
        message,
        request.num_accepted_tokens,
        num_rejected_tokens(request),
        request.num_passes,
    )
    return Ended(request.owner, request.handle, request.request_id, finished)
