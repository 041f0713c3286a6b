"""Settles a step: takes back what was assumed too much and hands the new tokens out."""

import numpy as np

from optimist_scheduler.core.output import Finished, FinishReason, Output
from optimist_scheduler.core.plan import StepInFlight, StepResult
from optimist_scheduler.core.requests import Request
from optimist_scheduler.core.state import SchedulerState


class ResultError(ValueError):
    """A result that cannot be the plan's; the message names the column."""


def settle(state: SchedulerState, result: StepResult) -> list[Output]:
    """Settles the plan in flight.

    With `e` emitted tokens of `k` planned drafts, `k - (e - 1)` computed tokens and all `1 + k`
    placeholders are taken back. Tokens behind a stop token or the length limit are cut off.

    Raises:
        ResultError: The result does not fit the plan; nothing was changed.
    """
    step = state.in_flight
    if step is None:
        raise ResultError("sequence: no plan is in flight")
    _check(state, step, result)
    state.in_flight = None
    table, slots, emitted = state.table, step.slots, result.num_emitted_tokens
    table.num_output_placeholders[slots] -= step.emits * (1 + step.num_draft_tokens)
    table.num_computed_tokens[slots] -= step.emits * (1 + step.num_draft_tokens - emitted)
    table.num_tokens[slots] += emitted

    outputs: list[Output] = []
    tokens = result.token_ids.tolist()
    start = 0
    for slot, end, drafted, accepted, shift in zip(
        slots.tolist(),
        np.cumsum(emitted).tolist(),
        result.num_drafted_tokens.tolist(),
        result.num_accepted_tokens.tolist(),
        step.window_shifts.tolist(),
        strict=True,
    ):
        request = table.request(slot)
        if request.ended:
            state.release(request)
        elif end > start:
            outputs.append(_deliver(state, request, tokens[start:end], drafted, accepted, shift))
        elif slot in result.errors:
            outputs.append(_end(state, request, FinishReason.ERROR, [], 0, result.errors[slot]))
        start = end
    return outputs


def _deliver(
    state: SchedulerState,
    request: Request,
    tokens: list[int],
    num_drafted: int,
    num_accepted: int,
    window_shift: int,
) -> Output:
    """Hands new tokens to a request, up to where it ends."""
    position = request.num_output_tokens
    reason, num_kept = find_end(request, tokens)
    if num_kept < len(tokens):
        tokens = tokens[:num_kept]
        num_accepted = min(num_accepted, num_kept)
    request.token_ids += tokens
    request.num_lost_plans = 0
    request.num_passes += 1
    if num_drafted:
        request.account.record(position + window_shift, num_drafted, num_accepted)
    if reason is not None:
        return _end(state, request, reason, tokens, num_accepted)
    window, table, slot = request.window, state.table, request.slot
    if table.window_end[slot] and window is not None and not window.agrees(position, tokens):
        table.window_end[slot] = 0
    return Output(request.request_id, tokens, num_accepted)


def find_end(request: Request, tokens: list[int]) -> tuple[FinishReason | None, int]:
    """Returns why the request ends among its new tokens, and how many of them it keeps."""
    length = len(request.token_ids)
    if not request.stop_token_ids.isdisjoint(tokens):
        for index, token_id in enumerate(tokens):
            if length + index + 1 > request.max_length:
                break
            if token_id in request.stop_token_ids and length + index + 1 >= request.min_length:
                return FinishReason.STOP, index + 1
    if length + len(tokens) >= request.max_length:
        return FinishReason.LENGTH, request.max_length - length
    return None, len(tokens)


def finish(request: Request, reason: FinishReason, message: str) -> Finished:
    """Returns the end of a request and its account."""
    account = request.account
    return Finished(
        reason,
        message,
        account.num_accepted_tokens,
        account.num_rejected_tokens,
        request.num_passes,
    )


def _end(
    state: SchedulerState,
    request: Request,
    reason: FinishReason,
    tokens: list[int],
    num_accepted: int,
    message: str = "",
) -> Output:
    state.end(request)
    finished = finish(request, reason, message)
    return Output(request.request_id, tokens, num_accepted, finished)


def _check(state: SchedulerState, step: StepInFlight, result: StepResult) -> None:
    if result.sequence != step.sequence:
        raise ResultError(f"sequence: {result.sequence} instead of {step.sequence}")
    if not np.array_equal(result.slots, step.slots):
        raise ResultError("slots: not those of the plan")
    emitted, drafted = result.num_emitted_tokens, result.num_drafted_tokens
    accepted, num_rows = result.num_accepted_tokens, len(step.slots)
    if {len(result.lengths), len(emitted), len(drafted), len(accepted)} != {num_rows}:
        raise ResultError("lengths, num_*_tokens: not one element per row")
    failed = np.isin(step.slots, list(result.errors)) if result.errors else np.False_
    if (emitted != np.where(failed, 0, step.emits * (1 + accepted))).any():
        raise ResultError("num_emitted_tokens: not one more than accepted where the row emits")
    if ((accepted < 0) | (accepted > drafted) | (drafted > step.num_draft_tokens)).any():
        raise ResultError("num_drafted_tokens: more accepted than drafted, or than planned")
    if (~failed & (result.lengths != state.table.num_tokens[step.slots] + emitted)).any():
        raise ResultError("lengths: not the known length and what was emitted")
    tokens = result.token_ids
    if len(tokens) != emitted.sum():
        raise ResultError(f"token_ids: {len(tokens)} instead of {emitted.sum()}")
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= state.limits.vocab_size):
        raise ResultError(f"token_ids: not from 0 to {state.limits.vocab_size - 1}")
