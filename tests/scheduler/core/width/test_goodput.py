"""Widths by goodput, without and with a drafter, against every other choice there is."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.base.values import BoolArray, Float32Array, Int32Array
from optimist_scheduler.core.width.acceptance import (
    MEMORY_TOKENS,
    Calibration,
    expected_accepted,
)
from optimist_scheduler.core.width.costs import PassCosts, Timings
from optimist_scheduler.core.width.goodput import (
    LEAST_GAIN,
    DrafterRows,
    Thresholds,
    choose_levels,
)
from optimist_scheduler.core.windows.window import PRIOR_HAZARD, WINDOW_PRIOR
from tests.scheduler.situation import ints

rates = st.floats(0, 1, width=32)
# Time at 1 token, and what each doubling adds.
curves = st.builds(
    lambda start, rises: CostCurve(
        [2**i for i in range(len(rises) + 1)],
        [start, *(start + int(rise) for rise in np.cumsum(rises))],
    ),
    st.integers(1, 5000),
    st.lists(st.integers(0, 3000), max_size=11),
)


# With a drafter.


draft_curves = st.builds(
    lambda start, rises: CostCurve(
        range(1, len(rises) + 2), [start, *(start + int(rise) for rise in np.cumsum(rises))]
    ),
    st.integers(1, 4000),
    st.lists(st.integers(0, 1500), max_size=4),
)
# Per row: rate and limit of the drafter, and whether that drafts for it.
row_sets = st.lists(st.tuples(rates, st.integers(0, 4), st.booleans()), min_size=1, max_size=4)
Row = tuple[float, int, bool]


class Case:
    """Rows, and what their passes cost."""

    def __init__(
        self, rows: list[Row], base: int, curve: CostCurve, weight: float, drafting: CostCurve
    ) -> None:
        columns = list(zip(*rows, strict=True))
        limits = np.array(columns[1], np.int32)
        self.served: BoolArray = np.array(columns[2])
        self.base, self.curve = len(rows) + base, curve
        self.rate = len(rows) / curve.cost_of(self.base)
        self.drafter = DrafterRows(np.array(columns[0], np.float32), limits, weight, drafting)

    def choose(self) -> Int32Array:
        levels = choose_levels(self.drafter, self.served, self.rate, self.base, self.curve)
        assert levels.dtype == np.int32
        assert ((levels >= 0) & (levels <= self.drafter.limits)).all()
        return levels

    def gain(self, levels: Int32Array) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Returns what levels bring more than their time would otherwise [...]."""
        levels = levels * self.served
        tokens = expected_accepted(self.drafter.rates, levels).sum(axis=-1)
        sizes = self.base + (levels * self.drafter.tokens_per_level).sum(axis=-1)
        ns = self.curve.cost(sizes) + self.drafter.cost(levels.max(axis=-1))
        return np.asarray(tokens - self.rate * (ns - self.curve.cost_of(self.base)))

    def every(self) -> Int32Array:
        limits = (self.drafter.limits * self.served).tolist()
        return np.array(list(itertools.product(*(range(limit + 1) for limit in limits))), np.int32)


cases = st.builds(
    Case, row_sets, st.integers(0, 12), curves, st.sampled_from([1.0, 1.5, 4.0, 12.0]), draft_curves
)


@given(cases)
def test_no_other_levels_bring_more_than_2_percent_more(case: Case) -> None:
    chosen, passes = case.choose(), case.rate * case.curve.cost_of(case.base)
    # Nor is it worse than no drafts.
    assert case.gain(chosen) >= 0
    if len({*case.drafter.rates.tolist()}) == len(chosen):
        assert case.gain(chosen) >= case.gain(case.every()).max() - LEAST_GAIN * passes - 1e-6


# By what windows say of their chances, and how far that is believed.


hazard_rows = st.lists(
    st.lists(st.floats(0.125, 6, width=32), min_size=1, max_size=5), min_size=1, max_size=4
)


def hazards_of(rows: list[list[float]]) -> Float32Array:
    """Returns cumulated hazards, infinite beyond the end of a row [num_rows, 5]."""
    hazards = np.full((len(rows), 5), np.inf, np.float32)
    for row, steps in enumerate(rows):
        hazards[row, : len(steps)] = np.cumsum(steps)
    return hazards


@given(hazard_rows, st.integers(1, 40), curves, st.floats(1e-8, 1e-5))
def test_drafts_are_worth_what_is_brought_on_the_average_in_their_time(
    rows: list[list[float]], num_tokens: int, curve: CostCurve, rate: float
) -> None:
    hazards = hazards_of(rows)
    most = np.isfinite(hazards).sum(axis=1, dtype=np.int32)
    worth = Thresholds(curve).choose(
        rate, num_tokens, most, lambda depth: (hazards <= depth).sum(axis=1, dtype=np.int32)
    )
    assert worth.dtype == np.int32
    assert ((worth >= 0) & (worth <= most)).all()
    chances = np.sort(np.exp(-hazards[np.isfinite(hazards)].astype(np.float64)))[::-1]
    sizes = num_tokens + np.arange(len(chances) + 1)
    # Of the lowest line from each size to each other, which is the hull of the curve.
    costs = curve.cost(sizes)
    hull = np.array(
        [
            min(
                np.interp(size, [left, right], costs[[left - num_tokens, right - num_tokens]])
                for left in sizes[sizes <= size]
                for right in sizes[sizes >= size]
            )
            for size in sizes
        ]
    )
    gains = np.concatenate([[0], np.cumsum(chances)]) - rate * hull
    assert gains[int(worth.sum())] >= gains.max() - 1e-3


@given(st.lists(st.tuples(st.integers(0, 64), st.booleans()), max_size=60))
def test_windows_without_values_are_believed_by_what_they_did(
    passes: list[tuple[int, bool]],
) -> None:
    calibration, num_examined, num_agreed = (
        Calibration(1, 16, PRIOR_HAZARD),
        16.0,
        16 * WINDOW_PRIOR,
    )
    for agreed, is_rejected in passes:
        examined = ints(agreed + is_rejected)
        estimated = examined * np.float32(PRIOR_HAZARD)
        calibration.observe(ints(0), ints(agreed), examined, estimated)
        kept = math.exp(-(agreed + is_rejected) / MEMORY_TOKENS)
        num_examined = num_examined * kept + agreed + is_rejected
        num_agreed = num_agreed * kept + agreed
    rate = num_agreed / num_examined
    rates, scales = calibration.weigh(ints(0))
    assert rates == pytest.approx(rate, rel=1e-5)
    hazard = max(-math.log(rate), 1 / 1024)
    assert scales[0] * PRIOR_HAZARD == pytest.approx(hazard, rel=1e-3)


# By how long the rows are.


# 1 ms, and 10 us more per token.
CURVE = CostCurve([1, 64], [1000, 1630])
TIMINGS = Timings([1, 64], [1000, 1630], row_key_ns=2000.0, token_key_ns=50.0)


def test_long_rows_draft_less_than_short_ones() -> None:
    """Drafts that are as likely as each other pay after few tokens, and not after many."""
    rate, lengths = 2e-6, ints(100, 2000, 5000)
    mean = float(lengths.mean())
    thresholds = Thresholds(PassCosts(TIMINGS).of_rows(lengths), TIMINGS.token_key_ns, mean)
    hazards = np.arange(1, 21, dtype=np.float32) / 10

    def count(depths: object) -> Int32Array:
        limits = np.broadcast_to(np.asarray(depths, np.float32), 3)
        return np.array([(hazards <= limit).sum() for limit in limits], np.int32)

    worth = thresholds.choose(rate, 3, ints(20, 20, 20), count, lengths)
    chances = np.exp(-hazards.astype(np.float64))
    for length, number in zip(lengths.tolist(), worth.tolist(), strict=True):
        cost = rate * (10_000 + TIMINGS.token_key_ns * length)
        assert number == (chances > cost).sum(), length
    assert len(set(worth.tolist())) == 3


def test_passes_after_many_tokens_are_no_dearer_in_the_curve() -> None:
    costs, lengths, tokens, nobody = PassCosts(TIMINGS), ints(3000, 3000), ints(1, 1), ints()
    took = round(float(CURVE.cost(2)) + 2 * 3000 * TIMINGS.row_key_ns)
    for _ in range(50):
        costs.learn(lengths, tokens, 2, took)
    assert float(costs.of_rows(nobody).cost(2)) == pytest.approx(float(CURVE.cost(2)), rel=0.01)
    assert float(costs.of_rows(lengths).cost(2)) == pytest.approx(took, rel=0.01)
    # A time that is less than what was timed for keys alone is no time of nothing.
    costs.learn(lengths, tokens, 2, 1000)
    assert float(costs.of_rows(nobody).cost(2)) > 0
