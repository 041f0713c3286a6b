"""Whether a result can be what became of a plan."""

from typing import NamedTuple

import numpy as np

from optimist_common.drafts import ROOT, DraftSource
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.requests.state import SchedulerState, StepInFlight
from optimist_scheduler.core.requests.table import Rows
from optimist_scheduler.core.values.arrays import BoolArray, Int32Array, SlotArray, is_same
from optimist_scheduler.core.values.logprobs import find_logprobs_fault
from optimist_scheduler.core.width.drafter import Drafter
from optimist_scheduler.core.windows.window import MAX_NODES, NO_POSITION
from optimist_scheduler.core.windows.worker_windows import NO_NODE

UNKNOWN_NODE = -2
"""Where a row was in its window, if the worker does not report it."""


class ResultError(ValueError):
    """A result that cannot be the plan's; the message names the column."""


def find_step(state: SchedulerState, result: StepResult) -> StepInFlight | None:
    """Returns the step that a result belongs to; None for one that was settled before.

    Raises:
        ResultError: Its turn has not come.
    """
    oldest = state.in_flight[0].sequence if state.in_flight else state.num_plans + 1
    leased = state.leased[0] if state.leased else None
    if result.repeat == 0:
        if state.in_flight and result.sequence == oldest:
            return state.in_flight[0]
    elif leased and result.sequence == leased.sequence:
        if result.repeat == leased.num_runs <= leased.num_repeats:
            return leased
        if result.repeat >= leased.num_runs:
            raise ResultError(f"repeat: {result.repeat} instead of {leased.num_runs}")
    if result.sequence < oldest:
        return None
    raise ResultError(f"sequence: {result.sequence} instead of {oldest}")


def check_result(
    state: SchedulerState, step: StepInFlight, rows: Rows, alive: BoolArray, result: StepResult
) -> None:
    """Raises ResultError unless a result fits its plan; rows of requests that are over may lag.

    Args:
        state: The bounds, and the windows that the worker has.
        step: The plan.
        rows: Its rows before the result.
        alive: Which of them belong to requests that are not over [num_rows].
        result: The result.
    """
    _check_shape(step, result)
    if has_drafts := result.has_drafts:
        _check_drafts(step, result)
        _check_sources(state.config.drafter, result)
    emits, works = step.emits, alive
    if result.repeat:
        emits = np.ones_like(emits)
    if result.errors:
        fails = np.isin(step.slots, list(result.errors))
        emits, works = emits * ~fails, alive & ~fails
    emitted, wanted = result.num_emitted_tokens, emits
    if has_drafts:
        wanted = emits * (1 + result.num_accepted_tokens)
    if not is_same(emitted, wanted) and ((emitted != wanted) & (alive | (emitted != 0))).any():
        raise ResultError("num_emitted_tokens: not one more than accepted where the row emits")
    ends = rows.num_tokens + emitted
    is_long = ends > rows.max_length
    if np.count_nonzero(is_long) or not is_same(result.lengths, ends):
        fits = (result.lengths == ends) & ~is_long
        if (works & ~fits).any():
            raise ResultError("lengths: not the known length and what was emitted, or too long")
    tokens = result.token_ids
    # Negative numbers are large without their sign.
    if len(tokens) and int(tokens.view(np.uint32).max()) >= state.config.vocab_size:
        raise ResultError(f"token_ids: not from 0 to {state.config.vocab_size - 1}")


class DraftNodes(NamedTuple):
    """Which nodes of their windows the rows of a step have drafted."""

    window_nodes: Int32Array
    """See StepResult; UNKNOWN_NODE if the worker does not report it [num_rows]."""
    accepted_slots: SlotArray
    """Slot of each accepted draft, row after row [sum(num_accepted_tokens)]."""
    accepted_positions: Int32Array
    """Where accepted drafts were read from, see `Window.positions`
    [sum(num_accepted_tokens)]."""


def find_draft_nodes(state: SchedulerState, step: StepInFlight, result: StepResult) -> DraftNodes:
    """Returns the nodes of drafts, which `check_result` has found to be as many as planned.

    Raises:
        ResultError: They cannot be those of the windows that the worker has.
    """
    nodes, accepted_nodes = result.window_nodes, result.accepted_nodes
    slots = np.repeat(step.slots, result.num_accepted_tokens)
    if len(nodes) == len(accepted_nodes) == 0:
        # No row has drafted from its window, or the worker does not report nodes.
        unknown = np.full(len(step.slots), UNKNOWN_NODE, np.int32)
        return DraftNodes(unknown, slots, np.full(len(slots), NO_POSITION, np.int32))
    if len(nodes) != len(step.slots):
        raise ResultError("window_nodes: not one element per row")
    windows, is_windows = state.worker_windows, result.draft_sources == DraftSource.PREDICTION
    num_after = windows.num_nodes.take(step.slots) - nodes - 1
    # A negative number anywhere makes the whole negative.
    ahead = (nodes - ROOT) | (num_after - result.num_drafted_tokens)
    if ahead.min() < 0 and (is_windows & (ahead < 0)).any():
        raise ResultError("window_nodes: not in the window, or not so many drafts after it")
    of_windows: slice | BoolArray = slice(None)
    if state.config.drafter is not None:
        of_windows = np.repeat(is_windows, result.num_accepted_tokens)
    window_slots = slots[of_windows]
    if len(accepted_nodes) != len(window_slots):
        raise ResultError(f"accepted_nodes: {len(accepted_nodes)} instead of {len(window_slots)}")
    # Negative numbers are large without their sign.
    is_inside = not len(accepted_nodes) or int(accepted_nodes.view(np.uint32).max()) < MAX_NODES
    found = windows.find_positions(window_slots, accepted_nodes * is_inside)
    if not is_inside or (found == NO_NODE).any():
        raise ResultError("accepted_nodes: not in the window")
    positions = found
    if len(found) < len(slots):
        positions = np.full(len(slots), NO_POSITION, np.int32)
        positions[of_windows] = found
    return DraftNodes(nodes, slots, positions)


def check_logprobs(
    state: SchedulerState, step: StepInFlight, alive: BoolArray, result: StepResult
) -> None:
    """Raises ResultError unless log-probabilities can be of the rows that they are reported for.

    Those of requests that want none, or are over, are not looked at.
    """
    emitted = dict(zip(step.slots.tolist(), result.num_emitted_tokens.tolist(), strict=True))
    living = set(step.slots[alive].tolist())
    for slot, reported in result.logprobs.items():
        if slot not in emitted:
            raise ResultError(f"logprobs: slot {slot} is not in the plan")
        if slot in living and slot in state.logprob_slots:
            number = int(state.table.num_prompt_tokens[slot])
            fault = find_logprobs_fault(reported, emitted[slot], number, state.config.vocab_size)
            if fault is not None:
                raise ResultError(fault)


def _check_drafts(step: StepInFlight, result: StepResult) -> None:
    """Raises ResultError unless drafts are no more than planned, and enough for the accepted."""
    drafted, accepted = result.num_drafted_tokens, result.num_accepted_tokens
    # A negative number anywhere makes the whole negative.
    if (accepted | (drafted - accepted) | (step.num_draft_tokens - drafted)).min() < 0:
        raise ResultError("num_drafted_tokens: more accepted than drafted, or than planned")


def _check_sources(drafter: Drafter | None, result: StepResult) -> None:
    """Raises ResultError unless drafts come from windows or the drafter, as much as it makes."""
    sources, drafted = result.draft_sources, result.num_drafted_tokens
    # So it is with predictions alone.
    if not (sources != (drafted > 0)).any():
        return
    if ((sources == DraftSource.TARGET) != (drafted == 0)).any():
        raise ResultError("draft_sources: one without drafts, or drafts without a source")
    others = (sources < DraftSource.TARGET) | (sources > DraftSource.PREDICTION)
    if not others.any():
        return
    if drafter is None or (sources[others] != drafter.source).any():
        raise ResultError("draft_sources: neither the prediction nor the worker's drafter")
    if (drafted[others] > drafter.max_tokens).any():
        raise ResultError(f"num_drafted_tokens: the drafter makes at most {drafter.max_tokens}")
    if (result.num_accepted_tokens[others] > drafter.max_depth).any():
        raise ResultError(f"num_accepted_tokens: drafts are at most {drafter.max_depth} deep")


def _check_shape(step: StepInFlight, result: StepResult) -> None:
    if not is_same(result.slots.astype(np.int64), step.slots):
        raise ResultError("slots: not those of the plan")
    if not (
        len(step.slots)
        == len(result.lengths)
        == len(result.num_emitted_tokens)
        == len(result.num_drafted_tokens)
        == len(result.num_accepted_tokens)
        == len(result.draft_sources)
    ):
        raise ResultError("lengths, num_*_tokens, draft_sources: not one element per row")
    num_tokens = int(result.num_emitted_tokens.sum())
    if len(result.token_ids) != num_tokens:
        raise ResultError(f"token_ids: {len(result.token_ids)} instead of {num_tokens}")
