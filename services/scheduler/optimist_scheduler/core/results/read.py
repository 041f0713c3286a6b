"""Reads a result: whether it fits its plan, and the tokens that it brings to requests."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from optimist_aligner import IS_COMPILED
from optimist_common.drafts import NGRAM, PREDICTION, TARGET
from optimist_scheduler.core.base.values import (
    BoolArray,
    FinishReason,
    Int32Array,
    Int64Array,
    SlotArray,
    count_up,
    find_logprobs_fault,
)
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.requests.table import Counters
from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.core.windows.window import NO_POSITION

if IS_COMPILED:
    from optimist_aligner.native import fits_plan


class ResultError(ValueError):
    """A result that cannot be the plan's; the message names the column."""


def find_step(state: SchedulerState, result: StepResult) -> Plan | None:
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
    state: SchedulerState, step: Plan, rows: Counters, alive: BoolArray, result: StepResult
) -> None:
    """Raises ResultError unless a result fits its plan; rows of requests that are over may lag.

    Args:
        state: The bounds, and the windows that the worker has.
        step: The plan.
        rows: Its rows before the result.
        alive: Which of them belong to requests that are not over [num_rows].
        result: The result.
    """
    if _is_plainly_right(state, step, rows, alive, result):
        return
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
    if not _is_same(emitted, wanted) and ((emitted != wanted) & (alive | (emitted != 0))).any():
        raise ResultError("num_emitted_tokens: not one more than accepted where the row emits")
    ends = rows.num_tokens + emitted
    is_long = ends > rows.max_length
    if np.count_nonzero(is_long) or not _is_same(result.lengths, ends):
        fits = (result.lengths == ends) & ~is_long
        if (works & ~fits).any():
            raise ResultError("lengths: not the known length and what was emitted, or too long")
    # Negative numbers are large without their sign.
    tokens = result.token_ids.view(np.uint32)
    if len(tokens) and tokens.item(tokens.argmax()) >= state.config.vocab_size:
        raise ResultError(f"token_ids: not from 0 to {state.config.vocab_size - 1}")


def _is_plainly_right(
    state: SchedulerState, step: Plan, rows: Counters, alive: BoolArray, result: StepResult
) -> bool:
    """Returns whether what is compiled finds no fault, as in most results.

    It says nothing of repeats, of errors and of drafts from elsewhere than windows.
    """
    if not IS_COMPILED or result.repeat or result.errors:
        return False
    return fits_plan(
        step.slots,
        step.emits,
        step.num_draft_tokens,
        rows.num_tokens,
        rows.max_length,
        alive,
        result.slots,
        result.lengths,
        result.num_emitted_tokens,
        result.token_ids,
        result.num_drafted_tokens,
        result.num_accepted_tokens,
        result.draft_sources,
        state.config.vocab_size,
    )


class DraftNodes(NamedTuple):
    """Which nodes of their windows the rows of a step have drafted."""

    window_nodes: Int32Array | None
    """See StepResult; None if the worker does not report it [num_rows]."""
    draft_positions: Int32Array | None
    """See StepResult; None if no drafts were looked up [num_rows]."""
    accepted_positions: Int32Array
    """Where accepted drafts were read from, row after row, see `Window.positions`
    [sum(num_accepted_tokens)]."""

    def select(self, chosen: BoolArray, num_accepted: Int32Array) -> "DraftNodes":
        """Returns those of the rows that a mask chooses, which have so many accepted drafts."""
        nodes, first, positions = self
        return DraftNodes(
            None if nodes is None else nodes[chosen],
            None if first is None else first[chosen],
            positions[chosen.repeat(num_accepted)],
        )


def find_draft_nodes(
    state: SchedulerState, step: Plan, alive: BoolArray, result: StepResult
) -> DraftNodes:
    """Returns the nodes of drafts, which `check_result` has found to be as many as planned.

    Args:
        state: The windows that the worker has.
        step: The plan.
        alive: Which rows belong to requests that are not over [num_rows].
        result: The result.

    Raises:
        ResultError: They cannot be those of the windows that the worker has.
    """
    nodes, positions = _find_window_nodes(state, step, result)
    draft_positions, num_accepted = result.draft_positions, result.num_accepted_tokens
    if len(draft_positions) == 0 or not np.count_nonzero(draft_positions != NO_POSITION):
        return DraftNodes(nodes, None, positions)
    _check_draft_positions(state, step, alive, result)
    looked_up = count_up(draft_positions, num_accepted)
    is_looked_up = (draft_positions != NO_POSITION).repeat(num_accepted)
    positions = np.where(is_looked_up, looked_up, positions).astype(np.int32)
    return DraftNodes(nodes, draft_positions, positions)


def _check_draft_positions(
    state: SchedulerState, step: Plan, alive: BoolArray, result: StepResult
) -> None:
    first, drafted = result.draft_positions, result.num_drafted_tokens
    if len(first) != len(step.slots):
        raise ResultError("draft_positions: not one element per row")
    looks_up = alive & (first != NO_POSITION)
    ends = state.table.num_predicted_tokens.take(step.slots)
    is_wrong = (first < 0) | (drafted > ends - first) | (result.draft_sources != NGRAM)
    if (looks_up & is_wrong).any():
        raise ResultError("draft_positions: not in the predictions, or of drafts from elsewhere")


def _find_window_nodes(
    state: SchedulerState, step: Plan, result: StepResult
) -> tuple[Int32Array | None, Int32Array]:
    """Returns where rows were in their windows, and where accepted drafts were read from."""
    nodes, accepted_nodes = result.window_nodes, result.accepted_nodes
    num_accepted = result.num_accepted_tokens
    if len(nodes) == len(accepted_nodes) == 0:
        # No row has drafted from its window, or the worker does not report nodes.
        return None, np.full(num_accepted.sum(), NO_POSITION, np.int32)
    if len(nodes) != len(step.slots):
        raise ResultError("window_nodes: not one element per row")
    windows, next_nodes = state.worker_windows, nodes + 1
    num_after = windows.num_nodes.take(step.slots) - next_nodes
    # A negative number anywhere makes the whole negative. Before all nodes is ROOT, which is -1.
    is_wrong = (next_nodes | (num_after - result.num_drafted_tokens)) < 0
    if np.count_nonzero(is_wrong) and (is_wrong & (result.draft_sources == PREDICTION)).any():
        raise ResultError("window_nodes: not in the window, or not so many drafts after it")
    num_of_windows = num_accepted
    if state.config.drafter is not None:
        num_of_windows = num_accepted * (result.draft_sources == PREDICTION)
    number = int(np.add.reduce(num_of_windows))
    if len(accepted_nodes) != number:
        raise ResultError(f"accepted_nodes: {len(accepted_nodes)} instead of {number}")
    positions = windows.find_positions(step.slots, num_of_windows, accepted_nodes)
    if positions is None:
        raise ResultError("accepted_nodes: not in the window")
    if num_of_windows is not num_accepted:
        of_windows, found = (num_of_windows == num_accepted).repeat(num_accepted), positions
        positions = np.full(len(of_windows), NO_POSITION, np.int32)
        positions[of_windows] = found
    return nodes, positions


def check_logprobs(state: SchedulerState, step: Plan, alive: BoolArray, result: StepResult) -> None:
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


def _check_drafts(step: Plan, result: StepResult) -> None:
    """Raises ResultError unless drafts are no more than planned, and enough for the accepted."""
    drafted, accepted = result.num_drafted_tokens, result.num_accepted_tokens
    # A negative number anywhere makes the whole negative.
    signs = accepted | (drafted - accepted) | (step.num_draft_tokens - drafted)
    if signs.item(signs.argmin()) < 0:
        raise ResultError("num_drafted_tokens: more accepted than drafted, or than planned")


def _check_sources(drafter: Drafter | None, result: StepResult) -> None:
    """Raises ResultError unless drafts come from windows or the drafter, as much as it makes."""
    sources, drafted = result.draft_sources, result.num_drafted_tokens
    # So it is with predictions alone.
    if not np.count_nonzero(sources != (drafted > 0)):
        return
    if np.count_nonzero((sources == TARGET) != (drafted == 0)):
        raise ResultError("draft_sources: one without drafts, or drafts without a source")
    others = (sources < TARGET) | (sources > PREDICTION)
    if not np.count_nonzero(others):
        return
    if drafter is None or np.count_nonzero(sources[others] != int(drafter.source)):
        raise ResultError("draft_sources: neither the prediction nor the worker's drafter")
    if np.count_nonzero(drafted[others] > drafter.max_tokens):
        raise ResultError(f"num_drafted_tokens: the drafter makes at most {drafter.max_tokens}")
    if np.count_nonzero(result.num_accepted_tokens[others] > drafter.max_depth):
        raise ResultError(f"num_accepted_tokens: drafts are at most {drafter.max_depth} deep")


def _check_shape(step: Plan, result: StepResult) -> None:
    if not _is_same(result.slots.astype(np.int64), step.slots):
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
    num_tokens = int(np.add.reduce(result.num_emitted_tokens))
    if len(result.token_ids) != num_tokens:
        raise ResultError(f"token_ids: {len(result.token_ids)} instead of {num_tokens}")


def _is_same(one: SlotArray, other: SlotArray) -> bool:
    """Returns whether two columns of one type are the same, by bytes: numpy takes far longer."""
    return one.tobytes() == other.tobytes()


@dataclass(slots=True)
class NewTokens:
    """The rows of a step that got tokens."""

    slots: SlotArray
    """[num_rows]"""
    starts: Int32Array
    """Length of each sequence before the step [num_rows]."""
    num_tokens: Int32Array
    """New tokens per row [num_rows]."""
    num_drafted_tokens: Int32Array
    num_accepted_tokens: Int32Array
    draft_sources: Int32Array
    nodes: DraftNodes
    token_ids: Int32Array
    """The new tokens, row after row [num_new]."""
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    """Why requests end with their last token, by row."""
    ends: Int32Array = field(init=False)
    """Length of each sequence after the step [num_rows]."""

    def find_rows(self, tokens: Int64Array) -> Int64Array:
        """Returns the rows of some of the tokens, by their indices [num_tokens]."""
        return self.num_tokens.cumsum().searchsorted(tokens, side="right")


def find_new_tokens(
    state: SchedulerState,
    step: Plan,
    rows: Counters,
    alive: BoolArray,
    result: StepResult,
    nodes: DraftNodes,
) -> NewTokens:
    """Returns the tokens of the requests that are not over, cut where the requests end.

    Args:
        state: The state.
        step: The plan.
        rows: Its rows before the result.
        alive: Which of them belong to requests that are not over [num_rows].
        result: The result.
        nodes: The nodes of its drafts.
    """
    slots, counts, token_ids = step.slots, result.num_emitted_tokens, result.token_ids
    drafted, accepted = result.num_drafted_tokens, result.num_accepted_tokens
    sources, starts, max_lengths = result.draft_sources, rows.num_tokens, rows.max_length
    if np.count_nonzero(counts) < len(counts) or np.count_nonzero(alive) < len(alive):
        gets = alive & (counts > 0)
        token_ids = token_ids[gets.repeat(counts)]
        nodes = nodes.select(gets, accepted)
        chosen = gets.nonzero()[0]
        slots, starts, max_lengths = slots.take(chosen), starts.take(chosen), max_lengths[chosen]
        counts, drafted = counts.take(chosen), drafted.take(chosen)
        accepted, sources = accepted.take(chosen), sources.take(chosen)
    new = NewTokens(slots, starts, counts, drafted, accepted, sources, nodes, token_ids)
    _cut_at_stops(state, new)
    new.ends = new.starts + new.num_tokens
    is_full = new.ends >= max_lengths
    for row in is_full.nonzero()[0].tolist():
        new.reasons.setdefault(row, FinishReason.LENGTH)
    return new


def _cut_at_stops(state: SchedulerState, new: NewTokens) -> None:
    if not np.count_nonzero(may_stop := state.stops.find(new.token_ids)):
        return
    counts, ends = new.num_tokens.copy(), new.num_tokens.cumsum()
    for row in np.unique(new.find_rows(may_stop.nonzero()[0])).tolist():
        slot, start, end = int(new.slots[row]), int(new.starts[row]), int(ends[row])
        request = state.table.request(slot)
        token_ids = new.token_ids[end - int(counts[row]) : end].tolist()
        index = find_stop(request, start, token_ids)
        if index is not None:
            counts[row] = index + 1
            new.reasons[row] = FinishReason.STOP
    kept = _find_first(new.num_tokens, counts)
    new.token_ids = new.token_ids[kept]
    num_accepted = np.minimum(new.num_accepted_tokens, counts)
    is_kept = _find_first(new.num_accepted_tokens, num_accepted)
    positions = new.nodes.accepted_positions[is_kept]
    new.nodes = new.nodes._replace(accepted_positions=positions)
    new.num_tokens, new.num_accepted_tokens = counts, num_accepted


def _find_first(numbers: Int32Array, kept: Int32Array) -> BoolArray:
    """Returns which of so many elements of each row are the first ones that are kept."""
    index = count_up(np.zeros_like(numbers), numbers)
    is_kept: BoolArray = index < np.repeat(kept, numbers)
    return is_kept


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
