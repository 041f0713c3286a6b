"""Whether a result fits its plan: one that cannot be read is refused, a row that is wrong fails."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from optimist_aligner import IS_COMPILED
from optimist_common.drafts import FORM, NGRAM, PREDICTION, TARGET
from optimist_scheduler.core.base.values import (
    BoolArray,
    Int32Array,
    count_up,
    find_first,
    find_logprobs_fault,
)
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.requests.table import Counters
from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.core.windows.window import NO_POSITION

if IS_COMPILED:
    from optimist_aligner.native import fits_plan

WRONG = "the worker's result is wrong: "


_EMPTY = {
    **dict.fromkeys(("num_emitted_tokens", "num_drafted_tokens", "num_accepted_tokens"), 0),
    **dict.fromkeys(("num_form_drafted_tokens", "num_form_accepted_tokens"), 0),
    "draft_sources": TARGET,
    "window_nodes": NO_POSITION,
    "draft_positions": NO_POSITION,
}
"""What columns have where a row brought nothing."""


class ResultError(ValueError):
    """A result that cannot be read as a plan's; the message names the column."""


class WrongRowsError(Exception):
    """Rows of a result that cannot be; all else of it can be read."""

    def __init__(self, faults: dict[int, str]) -> None:
        super().__init__("; ".join(faults.values()))
        self.faults = faults

    @classmethod
    def of(cls, is_wrong: BoolArray, fault: str) -> "WrongRowsError":
        """Returns the same fault of all rows that a mask chooses."""
        return cls(dict.fromkeys(is_wrong.nonzero()[0].tolist(), fault))


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


def check_result(
    state: SchedulerState, step: Plan, rows: Counters, alive: BoolArray, result: StepResult
) -> tuple[StepResult, DraftNodes]:
    """Returns a result all of whose rows fit its plan, and the nodes of its drafts.

    Rows that are wrong, and those that the worker says have failed, emit nothing in it, and their
    slots have errors. Rows of requests that are over may lag.

    Raises:
        ResultError: It cannot be read: whose row something is, is not known.
    """
    if not _is_plainly_right(state, step, rows, alive, result):
        _check_shape(step, result)
        wrong = find_wrong_rows(state, step, rows, alive, result)
        if wrong or result.errors:
            result = _leave_out(state, step, result, wrong)
    while True:
        try:
            nodes = find_draft_nodes(state, step, alive, result)
            if result.logprobs:
                _check_logprobs(state, step, alive, result)
        except WrongRowsError as error:
            # Those that are left out are not found again.
            result = _leave_out(state, step, result, error.faults)
        else:
            return result, nodes


def _is_plainly_right(
    state: SchedulerState, step: Plan, rows: Counters, alive: BoolArray, result: StepResult
) -> bool:
    """Returns whether what is compiled finds no fault, as in most results.

    It says nothing of errors and of drafts from elsewhere than windows.
    """
    of_form = len(result.num_form_drafted_tokens) + len(result.num_form_accepted_tokens)
    if not IS_COMPILED or result.errors or of_form:
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


def _check_shape(step: Plan, result: StepResult) -> None:
    if not np.array_equal(result.slots, step.slots):
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
    emitted = result.num_emitted_tokens
    num_tokens = int(np.add.reduce(emitted, dtype=np.int64))
    if len(result.token_ids) != num_tokens or (emitted < 0).any():
        raise ResultError(f"token_ids: {len(result.token_ids)} instead of {num_tokens}")
    of_form = result.num_form_drafted_tokens, result.num_form_accepted_tokens
    if {*map(len, of_form)} not in ({0}, {len(step.slots)}):
        raise ResultError("num_form_*_tokens: not one element per row")
    if others := result.errors.keys() - set(step.slots.tolist()):
        raise ResultError(f"errors: slot {min(others)} is not in the plan")


def find_wrong_rows(
    state: SchedulerState, step: Plan, rows: Counters, alive: BoolArray, result: StepResult
) -> dict[int, str]:
    """Returns the rows that do not fit the plan, and the first thing that is wrong with each.

    Of draft nodes, positions and log-probabilities it says nothing, nor of rows that have errors.
    """
    emitted, accepted = result.num_emitted_tokens, result.num_accepted_tokens
    ends = rows.num_tokens + emitted
    drafted = result.num_drafted_tokens
    is_off = (accepted < 0) | (drafted < accepted) | (step.num_draft_tokens < drafted)
    wrong = {"num_drafted_tokens: more accepted than drafted, or than planned": is_off}
    wrong |= _find_wrong_sources(state.config.drafter, result)
    if len(result.num_form_drafted_tokens):
        wrong["num_form_*_tokens: more than all, or without a grammar"] = _find_wrong_forms(
            state.table.form_width.take(step.slots), result
        )
    is_off = (emitted != step.emits * (1 + accepted)) & (alive | (emitted != 0))
    wrong["num_emitted_tokens: not one more than accepted where the row emits"] = is_off
    is_off = alive & ((result.lengths != ends) | (ends > rows.max_length))
    wrong["lengths: not the known length and what was emitted, or too long"] = is_off
    vocab_size = state.config.vocab_size
    # Negative numbers are large without their sign.
    outside = (result.token_ids.view(np.uint32) >= vocab_size).nonzero()[0]
    is_off = np.zeros_like(alive)
    is_off[emitted.cumsum().searchsorted(outside, side="right")] = True
    wrong[f"token_ids: not from 0 to {vocab_size - 1}"] = is_off
    has_failed = np.isin(step.slots, list(result.errors))
    found: dict[int, str] = {}
    for text, is_wrong in wrong.items():
        for row in (is_wrong & ~has_failed).nonzero()[0].tolist():
            found.setdefault(row, text)
    return found


def _find_wrong_sources(drafter: Drafter | None, result: StepResult) -> dict[str, BoolArray]:
    """Returns which rows have drafts neither from windows nor from the drafter as it makes them."""
    sources, drafted = result.draft_sources, result.num_base_drafted_tokens
    has_none = ((sources == TARGET) | (sources == FORM)) != (drafted == 0)
    has_none |= (sources == TARGET) != (result.num_drafted_tokens == 0)
    wrong = {"draft_sources: one without drafts, or drafts without a source": has_none}
    others = (sources < TARGET) | ((sources > PREDICTION) & (sources != FORM))
    is_drafters = np.zeros_like(others)
    if drafter is not None:
        is_drafters = sources == int(drafter.source)
        is_wide = is_drafters & (drafted > drafter.max_tokens)
        wrong[f"num_drafted_tokens: the drafter makes at most {drafter.max_tokens}"] = is_wide
        is_deep = is_drafters & (result.num_base_accepted_tokens > drafter.max_depth)
        wrong[f"num_accepted_tokens: drafts are at most {drafter.max_depth} deep"] = is_deep
    wrong["draft_sources: neither the prediction nor the worker's drafter"] = others & ~is_drafters
    return wrong


def _find_wrong_forms(widths: Int32Array, result: StepResult) -> BoolArray:
    """Returns which rows cannot have so many drafts from the form of their answers [num_rows]."""
    drafted, accepted = result.num_form_drafted_tokens, result.num_form_accepted_tokens
    # A negative number anywhere makes the whole negative.
    rest = result.num_base_drafted_tokens - result.num_base_accepted_tokens
    signs = accepted | (drafted - accepted) | result.num_base_accepted_tokens | rest
    is_wrong: BoolArray = (signs < 0) | ((drafted > 0) & (widths == 0))
    return is_wrong


def _check_logprobs(
    state: SchedulerState, step: Plan, alive: BoolArray, result: StepResult
) -> None:
    """Raises unless log-probabilities can be of the rows that they are reported for.

    Those of requests that want none, or are over, are not looked at.
    """
    of_slots = {slot: row for row, slot in enumerate(step.slots.tolist())}
    faults: dict[int, str] = {}
    for slot, reported in result.logprobs.items():
        if slot not in of_slots:
            raise ResultError(f"logprobs: slot {slot} is not in the plan")
        row = of_slots[slot]
        if alive[row] and slot in state.logprob_slots:
            number = int(state.table.num_prompt_tokens[slot])
            num_emitted, vocab_size = int(result.num_emitted_tokens[row]), state.config.vocab_size
            fault = find_logprobs_fault(reported, num_emitted, number, vocab_size)
            if fault is not None:
                faults[row] = fault
    if faults:
        raise WrongRowsError(faults)


def _leave_out(
    state: SchedulerState, step: Plan, result: StepResult, faults: Mapping[int, str]
) -> StepResult:
    """Returns a result in which rows that are wrong or have failed brought nothing."""
    stays = ~np.isin(step.slots, list(result.errors))
    wrong = list(faults)
    stays[wrong] = False
    errors = {int(step.slots[row]): WRONG + fault for row, fault in faults.items()} | result.errors
    columns: dict[str, Any] = {
        name: np.where(stays, column, np.int32(empty))
        for name, empty in _EMPTY.items()
        if len(column := getattr(result, name))
    }
    return replace(
        result,
        **columns,
        token_ids=result.token_ids[stays.repeat(result.num_emitted_tokens)],
        accepted_nodes=_keep_nodes(state, result, stays, wrong),
        errors=errors,
        logprobs={slot: each for slot, each in result.logprobs.items() if slot not in errors},
    )


def _keep_nodes(
    state: SchedulerState, result: StepResult, stays: BoolArray, wrong: list[int]
) -> Int32Array:
    """Returns the accepted nodes of the rows that stay."""
    nodes, counts = result.accepted_nodes, count_of_windows(state, result).astype(np.int64)
    if not len(nodes):
        return nodes
    number = int(counts.sum())
    if number != len(nodes) and len(wrong) == 1:
        # What it says of itself is wrong: it has what the others leave.
        counts[wrong] += len(nodes) - number
    if (counts < 0).any() or int(counts.sum()) != len(nodes):
        raise ResultError(f"accepted_nodes: {len(nodes)} instead of {number}")
    return nodes[stays.repeat(counts)]


def find_draft_nodes(
    state: SchedulerState, step: Plan, alive: BoolArray, result: StepResult
) -> DraftNodes:
    """Returns the nodes of drafts, which are as many as planned."""
    nodes, positions = _find_window_nodes(state, step, result)
    draft_positions, num_accepted = result.draft_positions, result.num_accepted_tokens
    if len(draft_positions) == 0:
        return DraftNodes(nodes, None, positions)
    if len(draft_positions) != len(step.slots):
        raise ResultError("draft_positions: not one element per row")
    if not np.count_nonzero(draft_positions != NO_POSITION):
        return DraftNodes(nodes, None, positions)
    _check_draft_positions(state, step, alive, result)
    looked_up = count_up(draft_positions, num_accepted)
    num_looked_up = result.num_base_accepted_tokens * (draft_positions != NO_POSITION)
    is_looked_up = find_first(num_accepted, num_looked_up)
    positions = np.where(is_looked_up, looked_up, positions).astype(np.int32)
    return DraftNodes(nodes, draft_positions, positions)


def count_of_windows(state: SchedulerState, result: StepResult) -> Int32Array:
    """Returns how many accepted drafts of each row are nodes of its window [num_rows]."""
    if state.config.drafter is None:
        return result.num_base_accepted_tokens
    counts: Int32Array = result.num_base_accepted_tokens * (result.draft_sources == PREDICTION)
    return counts


def _check_draft_positions(
    state: SchedulerState, step: Plan, alive: BoolArray, result: StepResult
) -> None:
    first, drafted = result.draft_positions, result.num_base_drafted_tokens
    ends = state.table.num_predicted_tokens.take(step.slots)
    is_wrong = (first < 0) | (drafted > ends - first) | (result.draft_sources != NGRAM)
    is_wrong &= alive & (first != NO_POSITION)
    if np.count_nonzero(is_wrong):
        fault = "draft_positions: not in the predictions, or of drafts from elsewhere"
        raise WrongRowsError.of(is_wrong, fault)


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
    is_wrong = (next_nodes | (num_after - result.num_base_drafted_tokens)) < 0
    if np.count_nonzero(is_wrong):
        is_wrong &= result.draft_sources == PREDICTION
        if np.count_nonzero(is_wrong):
            fault = "window_nodes: not in the window, or not so many drafts after it"
            raise WrongRowsError.of(is_wrong, fault)
    num_of_windows = count_of_windows(state, result)
    number = int(np.add.reduce(num_of_windows))
    if len(accepted_nodes) != number:
        raise ResultError(f"accepted_nodes: {len(accepted_nodes)} instead of {number}")
    positions = windows.find_positions(step.slots, num_of_windows, accepted_nodes)
    if positions is None:
        raise _find_wrong_nodes(state, step, num_of_windows, accepted_nodes)
    if num_of_windows is not num_accepted:
        of_windows, found = find_first(num_accepted, num_of_windows), positions
        positions = np.full(len(of_windows), NO_POSITION, np.int32)
        positions[of_windows] = found
    return nodes, positions


def _find_wrong_nodes(
    state: SchedulerState, step: Plan, counts: Int32Array, nodes: Int32Array
) -> WrongRowsError:
    """Returns which rows have accepted nodes that are not in their windows."""
    parts = np.split(nodes, counts.cumsum()[:-1])
    is_wrong = np.array(
        [
            state.worker_windows.find_positions(step.slots[[row]], counts[[row]], part) is None
            for row, part in enumerate(parts)
        ]
    )
    return WrongRowsError.of(is_wrong, "accepted_nodes: not in the window")
