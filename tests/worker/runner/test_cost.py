"""What passes and drafts are timed at start is what they take, whatever disturbs them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, pairwise, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.plan import Plan, StepResult
from optimist_worker.drafters.drafter import DraftRows, Proposal
from optimist_worker.runner.cost import (
    MeasuredCosts,
    fit_curve,
    measure_cost,
    measure_costs,
    measure_drafter,
    measure_keys,
)
from optimist_worker.runner.runner import Runner
from tests.worker.drafters.drafting import SHAPES, drafting_runner
from tests.worker.step import MAX_MODEL_LEN, generate


@given(st.dictionaries(st.integers(1, 4096), st.floats(1e-6, 10)))
def test_a_disturbed_time_is_bounded_by_those_of_other_passes(times: dict[int, float]) -> None:
    """By that of a larger pass, and by that of a smaller one in proportion."""
    curve = fit_curve(times)
    assert list(curve) == sorted(times)
    for size, fitted in curve.items():
        assert fitted <= round(times[size] * 1e6) or fitted == 1
        # No lower than some time allows.
        assert any(fitted >= int(times[one] * max(1.0, size / one) * 1e6) for one in times)
    for (size, fitted), (larger, cost) in pairwise(curve.items()):
        assert fitted <= cost <= fitted * larger / size + 1 + larger / size


def limited(runner: Runner, monkeypatch: pytest.MonkeyPatch, most: int) -> Runner:
    """A runner whose passes hold no more tokens than that."""
    state = runner.engine.state
    sizes = replace(state.sizes, max_num_batched_tokens=most)
    monkeypatch.setattr(state, "sizes", sizes)
    return runner


def clock_of(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, costs: Iterator[float]
) -> Callable[[], float]:
    """A clock that each step moves on by what it costs, and nothing else."""
    times, launch = [0.0], runner.engine.launch

    def launch_and_tick(*arguments: Any) -> Any:
        times.append(times[-1] + next(costs))
        return launch(*arguments)

    monkeypatch.setattr(runner.engine, "launch", launch_and_tick)
    return lambda: times[-1]


TIMED = (1, 2, 4, 8, 16, 32, 64)


def true_cost(num_tokens: int) -> float:
    return 0.008 + 0.0005 * num_tokens


def clock_of_passes(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, is_slow: Callable[[int, int], bool]
) -> Callable[[], float]:
    """A clock that passes move on by their cost, those that are slow by ten times as much.

    What is slow may depend on the number of the pass and on its tokens.
    """
    times, passes, execute = [0.0], count(), runner.execute

    def execute_and_tick(plan: Plan) -> StepResult:
        result = execute(plan)
        if tokens := result.num_tokens:
            times.append(
                times[-1] + true_cost(tokens) * (10 if is_slow(next(passes), tokens) else 1)
            )
        return result

    monkeypatch.setattr(runner, "execute", execute_and_tick)
    return lambda: times[-1]


@pytest.mark.parametrize(
    "is_slow",
    [
        # A stall of several passes.
        lambda number, _: 10 <= number < 19,
        # As where 1 token takes 23 ms and 4 take 123.
        lambda number, size: number < 30 and size in (2, 4, 8, 16),
    ],
    ids=["stall", "sizes"],
)
def test_sizes_that_seem_too_slow_beside_others_are_timed_again(
    is_slow: Callable[[int, int], bool], llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(llama, monkeypatch, TIMED[-1])
    clock = clock_of_passes(llama, monkeypatch, is_slow)
    times = {size: round(true_cost(size) * 1e6) for size in TIMED}
    assert measure_cost(llama, 60.0, clock) == times


def test_sizes_that_would_take_too_long_are_left_out(
    llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_of(limited(llama, monkeypatch, 64), monkeypatch, repeat(1.0))
    # A size takes 4 s. The third would begin at 8 s and is expected to take 8 s.
    assert [*measure_cost(llama, 16.0, clock)] == [1, 2]
    assert [*measure_cost(llama, 17.0, clock)] == [1, 2, 4]


def test_keys_in_memory_are_timed_beside_few(
    llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes of 1 and 17 tokens take 5 and 9 ms; after 368 tokens 6 and 17."""
    for memory in (*llama.engine.state.pool.keys, *llama.engine.state.pool.values):
        memory.fill_(torch.nan)
    clock = clock_of(llama, monkeypatch, iter([0.006, 0.006, 0.017, 0.017] + 2 * [0.006, 0.017]))
    keys = measure_keys(llama, {1: 5000, 17: 9000}, 60.0, clock)
    assert keys == (round(1e9 / 368), round(7e9 / 368 / 16))


def test_nothing_is_measured_in_no_time(llama: Runner) -> None:
    ticks = count()
    assert measure_cost(llama, 0.0, lambda: float(next(ticks))) == {}
    assert measure_costs(llama, 0.0) == MeasuredCosts({}, {})


def test_measuring_leaves_no_trace(llama: Runner) -> None:
    truth = generate(llama, [5, 6, 7], 20)
    llama.release_all()
    costs = measure_costs(llama, 60.0)
    # There is no drafter to be timed.
    assert (max(costs.passes), costs.drafter) == (MAX_MODEL_LEN - 1, {})
    assert generate(llama, [5, 6, 7], 20) == truth


def test_every_depth_of_the_drafter_is_timed(llama_path: Path) -> None:
    runner = drafting_runner(llama_path, "draft_model", SHAPES["fixed"])
    costs = measure_costs(runner, 60.0)
    times = list(costs.drafter.values())
    assert list(costs.drafter) == [1, 2, 3]
    assert times == sorted(times)
    assert times[0] > 0
    assert measure_drafter(runner, costs.passes, 0.0) == {}
    assert runner.engine.expected_draft_ns(100) == 1000 * times[-1]
    assert runner.engine.expected_draft_ns(1) == 1000 * times[0]
    assert runner.engine.expected_draft_ns(0) == 0


def test_a_drafter_that_fails_has_no_costs(
    llama_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = drafting_runner(llama_path, "draft_model", SHAPES["chain"])

    def fail(rows: DraftRows) -> Proposal:
        raise RuntimeError("not enough memory")

    drafter = runner.engine.drafter
    assert drafter is not None
    monkeypatch.setattr(drafter.guarded, "propose", fail)
    assert measure_drafter(runner, {1: 1}, 60.0) == {}
    assert "drafts of depth 1 cannot be timed: the drafter has failed" in caplog.text
