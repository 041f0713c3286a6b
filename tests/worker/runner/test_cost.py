from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.plan import Plan, StepResult
from optimist_worker.drafters.drafter import DraftRows, Proposal
from optimist_worker.runner.cost import (
    CostCurve,
    KeyCosts,
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


@given(st.dictionaries(st.integers(1, 4096), st.floats(1e-9, 10)))
def test_a_disturbed_time_is_replaced_by_that_of_a_larger_pass(times: dict[int, float]) -> None:
    sizes = sorted(times)
    least = [min(times[larger] for larger in sizes if larger >= size) for size in sizes]
    assert fit_curve(times) == CostCurve(sizes, [max(1, round(time * 1e6)) for time in least])


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


def test_passes_are_fed_what_they_are_timed_for(
    llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, execute = [], llama.execute

    def note(plan: Plan) -> StepResult:
        result = execute(plan)
        fed.append(result.num_tokens)
        return result

    monkeypatch.setattr(llama, "execute", note)
    measure_cost(limited(llama, monkeypatch, 11), 60.0)
    assert [number for number in fed if number] == [n for n in (1, 2, 4, 8, 11) for _ in range(4)]


def test_the_best_of_three_counts(llama: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass warms up."""
    clock = clock_of(limited(llama, monkeypatch, 1), monkeypatch, iter([9.0, 0.3, 0.1, 0.2]))
    assert measure_cost(llama, 60.0, clock) == CostCurve([1], [100_000])


def test_sizes_that_would_take_too_long_are_left_out(
    llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_of(limited(llama, monkeypatch, 64), monkeypatch, repeat(1.0))
    # A size takes 4 s. The third would begin at 8 s and is expected to take 8 s.
    assert measure_cost(llama, 16.0, clock).num_tokens == [1, 2]
    assert measure_cost(llama, 17.0, clock).num_tokens == [1, 2, 4]


def test_keys_in_memory_are_timed_beside_few(
    llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes of 1 and 17 tokens take 5 and 9 ms; after 368 tokens 6 and 17."""
    for memory in (*llama.engine.state.pool.keys, *llama.engine.state.pool.values):
        memory.fill_(torch.nan)
    clock = clock_of(llama, monkeypatch, iter([0.006] * 4 + [0.017] * 4))
    passes = CostCurve([1, 17], [5000, 9000])
    keys = measure_keys(llama, passes, 60.0, clock)
    assert keys == KeyCosts(round(1e9 / 368), round(7e9 / 368 / 16))


def test_what_keys_seem_to_save_is_nothing(llama: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_of(llama, monkeypatch, iter([0.004] * 4 + [0.007] * 4))
    assert measure_keys(llama, CostCurve([1, 17], [5000, 9000]), 60.0, clock) == KeyCosts()


@pytest.mark.parametrize("passes", [CostCurve([], []), CostCurve([1, 2], [10, 20])])
def test_keys_are_not_timed_without_a_curve(llama: Runner, passes: CostCurve) -> None:
    assert measure_keys(llama, passes, 60.0) == KeyCosts()


def test_nothing_is_measured_in_no_time(llama: Runner) -> None:
    ticks = count()
    assert measure_cost(llama, 0.0, lambda: float(next(ticks))) == CostCurve([], [])
    assert measure_costs(llama, 0.0) == MeasuredCosts(CostCurve([], []), [])


def test_a_pass_that_does_not_fit_into_memory_ends_the_curve(
    llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = llama.engine.model.module
    forward = module.forward

    def fail_when_large(*, input_ids: torch.Tensor, **options: object) -> object:
        if input_ids.shape[1] > 4:
            raise RuntimeError("not enough memory")
        return forward(input_ids=input_ids, **options)

    monkeypatch.setattr(module, "forward", fail_when_large)
    assert measure_cost(llama, 60.0).num_tokens == [1, 2, 4]


def test_measuring_leaves_no_trace(llama: Runner) -> None:
    truth = generate(llama, [5, 6, 7], 20)
    llama.release_all()
    costs = measure_costs(llama, 60.0)
    # There is no drafter to be timed.
    assert (costs.passes.num_tokens[-1], costs.drafter_us) == (MAX_MODEL_LEN - 1, [])
    assert generate(llama, [5, 6, 7], 20) == truth


def test_every_depth_of_the_drafter_is_timed(llama_path: Path) -> None:
    runner = drafting_runner(llama_path, "draft_model", SHAPES["fixed"])
    costs = measure_costs(runner, 60.0)
    assert len(costs.drafter_us) == SHAPES["fixed"].depth
    assert costs.drafter_us == sorted(costs.drafter_us)
    assert costs.drafter_us[0] > 0
    assert measure_drafter(runner, costs.passes, 0.0) == []
    assert runner.engine.expected_draft_ns(100) == 1000 * costs.drafter_us[-1]
    assert runner.engine.expected_draft_ns(1) == 1000 * costs.drafter_us[0]
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
    assert measure_drafter(runner, CostCurve([1], [1]), 60.0) == []
    assert "drafts of depth 1 cannot be timed: the drafter has failed" in caplog.text
