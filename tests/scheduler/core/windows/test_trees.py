"""Windows on their way: sent once, followed as trees, drafted from, and reported of."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.results.check import ResultError
from optimist_scheduler.core.windows.window import Window
from tests.scheduler.situation import Situation, run_plan, set_window, window_of

NODES = [(1, -1, 5), (2, 0, 6), (3, 0, -1), (4, -1, 9), (5, 2, 7), (6, 1, 8), (7, 4, -1)]
VALUES = [0.8, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1]


def follow(window: Window, output: list[int]) -> Window | None:
    return window.follow(np.array([7, 7, *output], np.int32), 2)


def columns(window: Window | None) -> tuple[list[int], list[int], list[int], list[float]]:
    """Returns tokens, parents, positions and values."""
    assert window is not None
    tokens, parents = window.tree.token_ids.tolist(), list(window.tree.list_parents())
    values = [round(each, 6) for each in window.values.tolist()]
    return tokens, parents, window.positions.tolist(), values


def test_what_is_left_behind_a_path_is_a_tree_with_chances_of_its_own() -> None:
    window = window_of(1, NODES, VALUES)
    assert follow(window, []) is None
    assert follow(window, [9]) is window
    left = follow(window, [9, 1])
    chances = [0.5, 0.5, 0.25, 0.125, 0.125]
    assert columns(left) == ([2, 3, 5, 6, 7], [-1, -1, 1, 0, 2], [6, -1, 7, 8, -1], chances)
    assert left is not None
    assert left.base == 2
    chain = follow(window, [9, 1, 3])
    assert columns(chain) == ([5, 7], [-1, 0], [7, -1], [0.5, 0.25])
    assert chain is not None
    assert chain.tree.parents is None
    assert columns(follow(left, [9, 1, 3, 5])) == ([7], [-1], [-1], [0.5])
    end = follow(window, [9, 4])
    assert end is not None
    assert end.num_nodes == 0
    for output in ([9, 4, 1], [9, 2], [9, 1, 2, 3]):
        assert follow(window, output) is None


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.usefixtures("always_ahead")
def test_an_alternative_that_agrees_becomes_the_window(at: int, depth: int) -> None:
    sizes: dict[str, Any] = {"num_blocks": 200, "max_model_len": 200, "max_num_batched_tokens": 64}
    situation = Situation(num_speculative_tokens=6, max_plans_in_flight=depth, **sizes)
    truth = situation.foresee([1, 2], 60)
    # The likeliest path is wrong from a position on, and so is one alternative of two. What the
    # model says is 60 tokens later in the prediction.
    wrong = [(token + 1) % 50 for token in truth[at:]]
    prediction = [*truth[:at], *wrong, *truth]
    situation.add(0, [1, 2], 60, predicted_token_ids=prediction)
    nodes = [(token, index - 1, index) for index, token in enumerate(truth[:at])]
    for index in range(at, 60):
        parents = range(len(nodes) - 3, len(nodes)) if index > at else [at - 1] * 3
        tokens = [(truth[index] + shift) % 50 for shift in (1, 2, 0)]
        nodes += zip(tokens, parents, (index, 0, 60 + index), strict=True)
    assert set_window(situation.scheduler, "r0", window_of(0, nodes))
    situation.finish()
    finished = situation.finished(0)
    # Without the alternative the rest would come one by one.
    assert finished.num_passes < 30
    assert finished.num_tokens_by_source[DraftSource.PREDICTION] > 30


@pytest.mark.usefixtures("always_ahead")
def test_a_window_is_sent_once_and_again_after_readmission() -> None:
    situation = Situation()
    situation.add_predicted(0, [1, 2], 20)
    assert [len(situation.step().windows) for _ in range(2)] == [1, 0]
    situation.lose_worker()
    plan = situation.send()
    assert [slot for slot, _ in plan.windows] == plan.slots.tolist()
    situation.finish()


# What results report of the windows that rows have drafted from.


def branching() -> tuple[Situation, StepResult]:
    """Returns a request that has drafted a tree, of which a branch is right, and the result."""
    situation = Situation(num_speculative_tokens=5)
    truth = situation.foresee([1, 2], 20)
    wrong = (truth[0] + 1) % 50
    situation.add(0, [1, 2], 20, predicted_token_ids=[wrong] * 9, wants_prediction_positions=True)
    nodes = [(wrong, -1, 1), (truth[0], -1, 3), (wrong, 0, 5), (truth[1], 1, -1), (wrong, 3, 7)]
    assert set_window(situation.scheduler, "r0", window_of(0, [*nodes, (wrong, 2, 8)]))
    situation.send()
    return situation, run_plan(situation)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("window_nodes", [-1, -1]),
        ("window_nodes", []),
        ("accepted_nodes", [1]),
        ("accepted_nodes", [1, 3, 4]),
    ],
)
def test_nodes_of_no_row_are_refused(column: str, values: list[int]) -> None:
    situation, result = branching()
    changes: dict[str, Any] = {column: np.array(values, np.int32)}
    with pytest.raises(ResultError, match=column):
        situation.scheduler.settle(replace(result, **changes))
    situation.scheduler.settle(result)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("window_nodes", [-2]),
        ("window_nodes", [1]),
        ("window_nodes", [2**31 - 1]),
        ("accepted_nodes", [1, 6]),
        ("accepted_nodes", [-1, 1]),
    ],
)
def test_nodes_that_the_window_does_not_have_end_their_request(
    column: str, values: list[int]
) -> None:
    situation, result = branching()
    changes: dict[str, Any] = {column: np.array(values, np.int32)}
    situation.settle_wrong(replace(result, **changes), column)
    situation.finish()
