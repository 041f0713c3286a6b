from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.cost import CostCurve, fit_curve, pass_sizes
from optimist_worker.cost import measure_cost
from optimist_worker.runner import Runner
from tests.worker.step import MAX_MODEL_LEN, generate


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(0, []), (1, [1]), (2, [1, 2]), (8, [1, 2, 4, 8]), (11, [1, 2, 4, 8, 11])],
)
def test_sizes_double_up_to_the_most(most: int, sizes: list[int]) -> None:
    assert pass_sizes(most) == sizes


def test_a_disturbed_time_is_replaced_by_that_of_a_larger_pass() -> None:
    times = {1: 30e-6, 2: 90e-6, 4: 50e-6, 8: 80e-6, 16: 1e-9}
    assert fit_curve(times) == CostCurve([1, 2, 4, 8, 16], [1] * 5)
    del times[16]
    assert fit_curve(times) == CostCurve([1, 2, 4, 8], [30, 50, 50, 80])
    assert fit_curve({}) == CostCurve([], [])


@given(st.dictionaries(st.integers(1, 4096), st.floats(1e-6, 10), min_size=1))
def test_curves_never_decrease(times: dict[int, float]) -> None:
    curve = fit_curve(times)
    assert curve.num_tokens == sorted(times)
    assert curve.microseconds == sorted(curve.microseconds)
    for size, cost in zip(curve.num_tokens, curve.microseconds, strict=True):
        assert cost <= round(times[size] * 1e6)


def test_every_size_is_timed_that_fits(llama: Runner) -> None:
    assert measure_cost(llama, 48, 60.0).num_tokens == [1, 2, 4, 8, 16, 32, 48]
    curve = measure_cost(llama, 2048, 60.0)
    assert curve.num_tokens[-1] == MAX_MODEL_LEN
    assert curve.microseconds[0] > 0


def test_the_best_of_three_counts(llama: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass costs what the clock is moved by; the first one warms up."""
    costs = iter([9.0, 0.3, 0.1, 0.2])
    now = 0.0

    def compute(rows: object) -> None:
        nonlocal now
        now += next(costs)

    monkeypatch.setattr(llama, "compute", compute)
    assert measure_cost(llama, 1, 60.0, lambda: now) == CostCurve([1], [100_000])


def test_sizes_that_would_take_too_long_are_left_out(
    llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def compute(rows: list[object]) -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(llama, "compute", compute)
    # A size takes 4 s. The third would begin at 8 s and is expected to take 8 s.
    assert measure_cost(llama, 64, 16.0, lambda: now).num_tokens == [1, 2]
    assert measure_cost(llama, 64, 17.0, lambda: now).num_tokens == [1, 2, 4]


def test_nothing_is_measured_in_no_time(llama: Runner) -> None:
    ticks = count()
    assert measure_cost(llama, 64, 0.0, lambda: float(next(ticks))) == CostCurve([], [])


def test_a_pass_that_does_not_fit_into_memory_ends_the_curve(
    llama: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = llama.model.module.forward

    def fail_when_large(*, input_ids: torch.Tensor, **options: object) -> object:
        if input_ids.shape[1] > 4:
            raise RuntimeError("not enough memory")
        return forward(input_ids=input_ids, **options)

    monkeypatch.setattr(llama.model.module, "forward", fail_when_large)
    assert measure_cost(llama, 64, 60.0).num_tokens == [1, 2, 4]


def test_measuring_leaves_no_trace(llama: Runner) -> None:
    truth = generate(llama, [5, 6, 7], 20)
    llama.release_all()
    measure_cost(llama, 64, 60.0)
    assert generate(llama, [5, 6, 7], 20) == truth
