"""What results report of the windows that rows have drafted from."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.results.read import ResultError
from tests.scheduler.drive import make_window, window_of
from tests.scheduler.situation import Situation, run_plan


def branching() -> tuple[Situation, StepResult]:
    """Returns a request that has drafted a tree, of which a branch is right, and the result."""
    situation = Situation(num_speculative_tokens=5)
    truth = situation.add(9, [1, 2], 20)
    situation.drain()
    wrong = (truth[0] + 1) % 50
    situation.add(0, [1, 2], 20, predicted_token_ids=[wrong] * 9, wants_prediction_positions=True)
    nodes = [(wrong, -1, 1), (truth[0], -1, 3), (wrong, 0, 5), (truth[1], 1, -1), (wrong, 3, 7)]
    assert situation.scheduler.set_window("r0", window_of(0, [*nodes, (wrong, 2, 8)]))
    situation.send()
    return situation, run_plan(situation)


def test_nodes_are_looked_up_in_the_window_as_it_was_sent() -> None:
    situation, result = branching()
    assert (result.window_nodes.tolist(), result.accepted_nodes.tolist()) == ([-1], [1, 3])
    # A newer window does not matter, though it has as many nodes.
    assert situation.scheduler.set_window("r0", make_window(0, 0, [7] * 6))
    (reported,) = situation.scheduler.settle(result).positions
    assert reported.positions.tolist() == [3, -1]
    finished = situation.abort(0)
    assert finished.accepted_prediction_tokens == 1
    assert finished.num_tokens_by_source[DraftSource.NGRAM] == 1
    # Positions 1, 5 and 7; the last node was not drafted.
    assert finished.rejected_prediction_tokens == 3


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("window_nodes", [-2]),
        ("window_nodes", [1]),
        ("window_nodes", [2**31 - 1]),
        ("window_nodes", [-1, -1]),
        ("window_nodes", []),
        ("accepted_nodes", [1]),
        ("accepted_nodes", [1, 3, 4]),
        ("accepted_nodes", [1, 6]),
        ("accepted_nodes", [-1, 1]),
    ],
)
def test_nodes_that_the_window_does_not_have_are_refused(column: str, values: list[int]) -> None:
    situation, result = branching()
    changes: dict[str, Any] = {column: np.array(values, np.int32)}
    with pytest.raises(ResultError, match=column):
        situation.scheduler.settle(replace(result, **changes))
    situation.scheduler.settle(result)


def test_of_a_worker_that_reports_no_nodes_accepted_drafts_are_counted() -> None:
    situation, result = branching()
    unknown = np.empty(0, np.int32)
    outputs = situation.scheduler.settle(
        replace(result, window_nodes=unknown, accepted_nodes=unknown)
    )
    assert outputs.positions[0].positions.tolist() == [-1, -1]
    finished = situation.abort(0)
    assert finished.accepted_prediction_tokens == 2
    assert finished.rejected_prediction_tokens == 0
    assert finished.num_drafted_tokens == 5
