"""The cost of passes is learnt from them, never falls with their tokens, and survives outliers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.cost import CostCurve

steps = st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 10**9)), max_size=60)


def make_curve(observations: list[tuple[int, int]]) -> CostCurve:
    curve = CostCurve()
    for num_tokens, step_ns in observations:
        curve.observe(num_tokens, step_ns)
    return curve


def test_the_curve_learns_a_line_from_noisy_steps_of_all_sizes() -> None:
    rng = np.random.default_rng(0)
    curve = CostCurve()
    for num_tokens in rng.integers(1, 1025, 3000).tolist():
        curve.observe(num_tokens, int((1_000_000 + 4000 * num_tokens) * rng.uniform(0.95, 1.05)))
    sizes = np.array([64, 150, 300, 700, 1024])
    np.testing.assert_allclose(curve.cost(sizes), 1_000_000 + 4000 * sizes, 0.05)


@pytest.mark.parametrize(("num_tokens", "step_ns"), [(0, 1000), (64, -5)])
def test_a_pass_without_tokens_or_time_teaches_nothing(num_tokens: int, step_ns: int) -> None:
    curve = CostCurve([1, 64], [1000, 2000])
    before = curve.cost([1, 64, 128])
    curve.observe(num_tokens, step_ns)
    assert curve.cost([1, 64, 128]).tolist() == before.tolist()


@given(steps)
def test_more_tokens_never_cost_less(observations: list[tuple[int, int]]) -> None:
    curve = make_curve(observations)
    costs = curve.cost(np.arange(6000))
    assert (costs >= 1).all()
    assert (np.diff(costs) >= -1e-6 * costs[1:]).all()
    # Two passes do the work of one of twice the size, and one costs what it costs among others.
    last = int(curve.knots[-1]) if curve.knots else 1
    for excess in (1, 700, 5000):
        cost = curve.cost(last + excess)
        assert curve.cost(2 * (last + excess)) <= 2 * cost * (1 + 1e-9)
        assert curve.cost_of(last + excess) == pytest.approx(float(cost), rel=1e-12)


@given(steps)
def test_reading_between_the_steps_changes_nothing(observations: list[tuple[int, int]]) -> None:
    read = CostCurve()
    for num_tokens, step_ns in observations:
        read.observe(num_tokens, step_ns)
        read.cost(num_tokens)
    sizes = np.arange(0, 6000, 7)
    assert read.cost(sizes).tolist() == make_curve(observations).cost(sizes).tolist()


@pytest.mark.parametrize(
    ("num_tokens", "microseconds", "message"),
    [
        ([1, 2], [100], "cost_us has 1 elements, cost_num_tokens 2"),
        ([4, 4], [100, 100], "cost_num_tokens must ascend from 1: 4 follows 4"),
        ([1], [0], "cost_us must be positive, not 0"),
    ],
)
def test_timed_passes_that_make_no_sense_are_refused(
    num_tokens: list[int], microseconds: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CostCurve(num_tokens, microseconds)
