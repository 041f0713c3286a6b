"""Where drafts were read from: nodes of windows, or positions of predictions."""

from typing import NamedTuple

import numpy as np

from optimist_common.drafts import NGRAM, PREDICTION
from optimist_scheduler.core.base.values import BoolArray, Int32Array, count_up
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.windows.window import NO_POSITION


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


def find_draft_nodes(
    state: SchedulerState, step: Plan, alive: BoolArray, result: StepResult
) -> DraftNodes:
    """Returns the nodes of drafts, which are as many as planned.

    Raises:
        ResultError: A column has another length than it must.
        WrongRowsError: Rows have nodes that are not those of the windows that the worker has.
    """
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
    is_looked_up = (draft_positions != NO_POSITION).repeat(num_accepted)
    positions = np.where(is_looked_up, looked_up, positions).astype(np.int32)
    return DraftNodes(nodes, draft_positions, positions)


def count_of_windows(state: SchedulerState, result: StepResult) -> Int32Array:
    """Returns how many accepted drafts of each row are nodes of its window [num_rows]."""
    if state.config.drafter is None:
        return result.num_accepted_tokens
    counts: Int32Array = result.num_accepted_tokens * (result.draft_sources == PREDICTION)
    return counts


def _check_draft_positions(
    state: SchedulerState, step: Plan, alive: BoolArray, result: StepResult
) -> None:
    first, drafted = result.draft_positions, result.num_drafted_tokens
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
    is_wrong = (next_nodes | (num_after - result.num_drafted_tokens)) < 0
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
        of_windows, found = (num_of_windows == num_accepted).repeat(num_accepted), positions
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
