"""Which steps are captured, replayed and run as they are; the graphs themselves need a GPU."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from optimist_worker.core.acceptance.sampling_table import Needs
from optimist_worker.core.batch.host_view import StepBounds
from optimist_worker.execution import graphs
from optimist_worker.execution.graphs import Function, GraphCache

NEEDS = Needs(False, False, False, False, 0, False, False)
SIZE = StepBounds(4, 128, 128, 65, 2048, 64, True, True, False, 0, 0, False, False, NEEDS)
INPUTS = torch.tensor([1, 2])


class Capture:
    """Captures nothing, but counts what it was asked for, and fails while it is set to."""

    def __init__(self) -> None:
        self.number, self.fails = 0, False
        self.runs: list[str] = []

    def __call__(self, inputs: torch.Tensor, function: Function) -> Function:
        self.number += 1
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")

        def replay(inputs: torch.Tensor) -> torch.Tensor:
            self.runs.append("replayed")
            return inputs + 1

        return replay

    def eager(self, inputs: torch.Tensor) -> torch.Tensor:
        """A step as it is."""
        self.runs.append("eager")
        return inputs + 1


@pytest.fixture
def capture() -> Capture:
    return Capture()


@pytest.fixture
def run(capture: Capture) -> Callable[[StepBounds], StepBounds]:
    """Runs a step of a size as an executor does; returns the size that it ran in."""
    cache = GraphCache(capture)

    def run(size: StepBounds) -> StepBounds:
        fitting = cache.fit(size)
        assert cache.run(fitting, INPUTS, capture.eager).tolist() == [2, 3]
        return fitting

    return run


Run = Callable[[StepBounds], StepBounds]


def test_a_size_is_captured_when_it_comes_and_replayed_afterwards(
    run: Run, capture: Capture
) -> None:
    assert [run(SIZE) for _ in range(3)] == [SIZE] * 3
    assert capture.runs == ["eager", "replayed", "replayed"]
    assert capture.number == 1


def test_a_step_runs_in_the_least_captured_size_that_holds_it(run: Run, capture: Capture) -> None:
    large, small = (replace(SIZE, num_tokens=number) for number in (160, 140))
    run(small)
    run(replace(large, max_num_keys=8192))
    capture.runs.clear()
    for _ in range(graphs._MOST_WIDER):
        assert run(SIZE) == small
    assert set(capture.runs) == {"replayed"}
    # One that comes often has its own.
    assert [run(SIZE), run(SIZE)] == [SIZE, SIZE]
    assert capture.runs[-2:] == ["eager", "replayed"]


@pytest.mark.parametrize(
    "other",
    [
        replace(SIZE, num_tokens=172),
        replace(SIZE, max_num_queries=64),
        replace(SIZE, uses_drafter=True),
        replace(SIZE, has_trees=False),
        replace(SIZE, num_rows=1),
    ],
    ids=["many more tokens", "fewer queries", "a drafter", "no trees", "fewer rows"],
)
def test_a_step_does_not_run_in_other_sizes(run: Run, other: StepBounds) -> None:
    run(other)
    assert run(SIZE) == SIZE


def test_sampling_holds_greedy_and_not_the_other_way(run: Run) -> None:
    sampled = replace(SIZE, needs=Needs(True, True, False, False, 300, True, True))
    run(sampled)
    assert run(SIZE) == sampled
    run(replace(SIZE, num_rows=16))
    assert run(replace(sampled, num_rows=16)).needs.samples


def test_a_failed_capture_is_not_tried_each_time_but_later(
    run: Run, capture: Capture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graphs, "_RETRY", 5)
    capture.fails = True
    for _ in range(5):
        run(SIZE)
    assert capture.number == 1
    assert caplog.text.count("without a CUDA graph: operation not permitted") == 1
    capture.fails = False
    # Others are captured meanwhile.
    other = replace(SIZE, uses_drafter=True)
    run(other)
    run(other)
    assert capture.runs == [*["eager"] * 6, "replayed"]
    run(SIZE)
    run(SIZE)
    assert capture.number == 3
    assert capture.runs[-2:] == ["eager", "replayed"]


def test_the_graph_not_used_for_longest_makes_room(
    run: Run, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    first, second, third = (
        replace(SIZE, num_rows=rows, num_tokens=100 * rows) for rows in (1, 4, 16)
    )
    for size in (first, second, first, third):
        run(size)
    capture.runs.clear()
    for size in (first, third, second):
        run(size)
    assert capture.runs == ["replayed", "replayed", "eager"]
