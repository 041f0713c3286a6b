"""Widths by goodput where a drafter takes part, against every other choice there is."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.base.values import BoolArray, Int32Array
from optimist_scheduler.core.width.acceptance import MIN_HAZARD, DrafterRows, expected_accepted
from optimist_scheduler.core.width.goodput import MIN_GAIN, choose_goodput
from tests.scheduler.core.width.test_goodput import curves, line

rates = st.floats(0, 1, width=32)
draft_curves = st.builds(
    lambda start, rises: CostCurve(
        range(1, len(rises) + 2), [start, *(start + int(rise) for rise in np.cumsum(rises))]
    ),
    st.integers(1, 4000),
    st.lists(st.integers(0, 1500), max_size=4),
)
# Per row: rate and limit of the window, whether it has one, rate and limit of the drafter.
row_sets = st.lists(
    st.tuples(rates, st.integers(0, 4), st.booleans(), rates, st.integers(0, 4)),
    min_size=1,
    max_size=4,
)
Row = tuple[float, int, bool, float, int]


class Case:
    """Rows, and what their passes cost."""

    def __init__(
        self, rows: list[Row], base: int, curve: CostCurve, weight: float, drafting: CostCurve
    ) -> None:
        columns = list(zip(*rows, strict=True))
        self.rates, drafter_rates = (np.array(columns[i], np.float32) for i in (0, 3))
        self.limits, drafter_limits = (np.array(columns[i], np.int32) for i in (1, 4))
        self.has_window: BoolArray = np.array(columns[2])
        self.base, self.curve = len(rows) + base, curve
        self.drafter = DrafterRows(drafter_rates, drafter_limits, weight, drafting)

    def choose(self, *, has_drafter: bool = True) -> tuple[Int32Array, Int32Array]:
        arguments = self.rates, self.limits, self.has_window, self.base, self.curve
        widths, levels, *_ = choose_goodput(*arguments, self.drafter if has_drafter else None)
        return widths, levels

    def goodput(self, levels: Int32Array) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Returns tokens per time where rows draft so many levels [..., num_rows]."""
        chances = np.where(self.has_window, self.rates, self.drafter.rates)
        tokens = len(self.rates) + expected_accepted(chances, levels).sum(axis=-1)
        weights = np.where(self.has_window, 1.0, self.drafter.tokens_per_level)
        deepest = (levels * ~self.has_window).max(axis=-1)
        ns = self.curve.cost(self.base + (levels * weights).sum(axis=-1))
        return np.asarray(tokens / (ns + self.drafter.cost(deepest)))

    def own(self, widths: Int32Array, levels: Int32Array) -> Int32Array:
        return np.where(self.has_window, widths, levels).astype(np.int32)

    def every(self) -> Int32Array:
        limits = self.own(self.limits, self.drafter.limits).tolist()
        return np.array(list(itertools.product(*(range(limit + 1) for limit in limits))), np.int32)


cases = st.builds(
    Case,
    row_sets,
    st.integers(0, 12),
    curves,
    st.sampled_from([1.0, 1.5, 4.0, 12.0]),
    draft_curves,
)


@given(cases, st.booleans())
def test_no_other_levels_are_more_than_2_percent_better(case: Case, has_drafter: bool) -> None:
    if not has_drafter:
        # No row is taken to be certain, and one that is gains more than what is found.
        case.rates = np.minimum(case.rates, np.exp(np.float32(-MIN_HAZARD)))
        case.has_window[:] = True
    widths, levels = case.choose(has_drafter=has_drafter)
    assert ((widths >= 0) & (widths <= case.limits)).all()
    assert ((levels >= 0) & (levels <= case.drafter.limits)).all()
    chosen = case.own(widths, levels)
    assert case.goodput(chosen) >= case.goodput(case.every()).max() / 1.0206
    # Nor is it worse than no speculation.
    plain = case.goodput(np.zeros_like(chosen))
    assert case.goodput(chosen) >= plain * (MIN_GAIN * 0.9999 if chosen.any() else 1)


def alike(num_rows: int, rate: float, limit: int, weight: float, drafting: CostCurve) -> Case:
    curve = line(1000, 4)
    return Case([(0.5, 0, False, rate, limit)] * num_rows, 0, curve, weight, drafting)


@pytest.mark.parametrize("num_rows", [1, 16, 256])
@pytest.mark.parametrize("rate", [0.4, 0.7, 0.95])
@pytest.mark.parametrize("weight", [1.0, 8.0])
@pytest.mark.parametrize("step_us", [0, 30, 200])
def test_large_batches_of_equal_rows_draft_as_deep_as_is_best(
    num_rows: int, rate: float, weight: float, step_us: int
) -> None:
    drafting = CostCurve(range(1, 9), [100 + step_us * depth for depth in range(8)])
    case = alike(num_rows, rate, 8, weight, drafting)
    uniform = np.repeat(np.arange(9, dtype=np.int32)[:, None], num_rows, axis=1)
    best = case.goodput(uniform).max()
    assert case.goodput(case.choose()[1]) >= best / 1.0205


def test_a_drafter_that_takes_too_long_is_off() -> None:
    slow = CostCurve(range(1, 9), [2000 * depth for depth in range(1, 9)])
    assert not alike(4, 0.9, 8, 1.0, slow).choose()[1].any()


def test_a_row_whose_window_breaks_joins_those_that_draft_with_the_drafter() -> None:
    drafting = CostCurve([1, 2, 4], [200, 200, 200])
    rows: list[Row] = [(0.9, 8, True, 0.8, 4)] + [(0.9, 8, False, 0.8, 4)] * 8
    widths, levels = Case(rows, 0, line(1000, 4), 1.0, drafting).choose()
    assert levels[0] > 0
    assert widths[1:].min() > 0
    slow = CostCurve([1, 2, 4], [90_000, 90_000, 90_000])
    widths, levels = Case(rows, 0, line(1000, 4), 1.0, slow).choose()
    assert levels.tolist() == [0] * 9
    assert widths[0] > 0
