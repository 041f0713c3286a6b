"""Widths by goodput, without and with a drafter, against every other choice there is."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.base.values import BoolArray, Float32Array, Int32Array
from optimist_scheduler.core.width.acceptance import (
    MIN_HAZARD,
    Acceptance,
    Calibration,
    DrafterRows,
    expected_accepted,
)
from optimist_scheduler.core.width.goodput import MIN_GAIN, Prices, choose_goodput
from optimist_scheduler.core.windows.window import PRIOR_HAZARD, WINDOW_PRIOR
from tests.scheduler.situation import ints

rates = st.floats(0, 1, width=32)
# No row is taken to be certain, and one that is gains more than what is found.
uncertain_rates = st.floats(0, float(np.exp(np.float32(-MIN_HAZARD))), width=32)
# Time at 1 token, and what each doubling adds.
curves = st.builds(
    lambda start, rises: CostCurve(
        [2**i for i in range(len(rises) + 1)],
        [start, *(start + int(rise) for rise in np.cumsum(rises))],
    ),
    st.integers(1, 5000),
    st.lists(st.integers(0, 3000), max_size=11),
)


def choose(
    rates: Float32Array,
    limits: Int32Array,
    base: int,
    curve: CostCurve,
    drafting: BoolArray | None = None,
) -> Int32Array:
    """Returns the widths of windows, of all rows if not only some are drafting."""
    every = np.ones(len(rates), np.bool_) if drafting is None else drafting
    widths, levels, *_ = choose_goodput(rates, limits, every, base, curve)
    assert not levels.any()
    return widths


def goodput(rates: Float32Array, widths: Int32Array, base: int, curve: CostCurve) -> float:
    tokens = len(rates) + expected_accepted(rates, widths).sum()
    return float(tokens / curve.cost(base + int(widths.sum())))


def line(fixed_us: float, us_per_token: float) -> CostCurve:
    sizes = [2**i for i in range(13)]
    return CostCurve(sizes, [round(fixed_us + us_per_token * size) for size in sizes])


@pytest.mark.parametrize("num_rows", [16, 64, 256])
@pytest.mark.parametrize("us_per_token", [1.0, 8.0, 64.0])
@pytest.mark.parametrize("num_kinds", [1, 3, 256])
def test_a_large_batch_comes_within_half_a_percent_of_the_best(
    num_rows: int, us_per_token: float, num_kinds: int
) -> None:
    rng = np.random.default_rng(num_rows)
    kinds = rng.uniform(0.3, 0.99, num_kinds).astype(np.float32)
    rates, limits = rng.choice(kinds, num_rows), rng.integers(0, 65, num_rows).astype(np.int32)
    curve = line(5000, us_per_token)
    # What the drafts are worth, best first; their cost depends on their number only.
    worth = np.where(np.arange(1, 65) <= limits[:, None], rates[:, None] ** np.arange(1, 65), 0)
    tokens = num_rows + np.cumsum(np.concatenate([[0], np.sort(worth, axis=None)[::-1]]))
    most = (tokens / curve.cost(num_rows + np.arange(len(tokens)))).max()
    widths = choose(rates, limits, num_rows, curve)
    chosen = goodput(rates, widths, num_rows, curve)
    assert chosen >= most * (0.995 if widths.any() else 1 / 1.0205)


@given(st.lists(uncertain_rates, min_size=1, max_size=64), st.integers(0, 64), curves)
def test_no_uniform_width_is_better_by_more_than_the_gain_that_is_asked_for(
    rates: list[float], limit: int, curve: CostCurve
) -> None:
    row_rates = np.array(rates, np.float32)
    widths = choose(row_rates, np.full(len(rates), limit, np.int32), len(rates), curve)
    chosen = goodput(row_rates, widths, len(rates), curve)
    for width in range(limit + 1):
        uniform = goodput(row_rates, np.full(len(rates), width, np.int32), len(rates), curve)
        assert chosen >= uniform * (0.995 if widths.any() else 1 / 1.0205)


@given(st.lists(rates, min_size=1, max_size=64), st.integers(1, 64), st.booleans(), curves)
def test_higher_agreement_never_gives_a_smaller_width_than_another_row_s(
    rates: list[float], limit: int, is_drafting: bool, curve: CostCurve
) -> None:
    row_rates, drafting = np.sort(np.array(rates, np.float32)), np.full(len(rates), is_drafting)
    limits = np.full(len(rates), limit, np.int32)
    widths = choose(row_rates, limits, len(rates), curve, drafting)
    # Of equal rows that draft some may get one more.
    compared = (np.diff(row_rates) > 0) | (not is_drafting)
    assert (np.diff(widths)[compared] >= 0).all()


@given(
    st.lists(st.tuples(rates, st.integers(0, 64), st.booleans()), max_size=60),
    st.integers(0, 600),
    curves,
)
def test_widths_stay_within_the_limits_and_rows_without_drafts_take_nothing_from_the_others(
    rows: list[tuple[float, int, bool]], num_prefill_tokens: int, curve: CostCurve
) -> None:
    rates = np.array([rate for rate, _, _ in rows], np.float32)
    limits = np.array([limit for _, limit, _ in rows], np.int32)
    drafting = np.array([present for _, _, present in rows], np.bool_)
    base = len(rows) + num_prefill_tokens
    widths = choose(rates, limits, base, curve, drafting)
    without = choose(rates, np.where(drafting, limits, 0).astype(np.int32), base, curve)
    for each in (widths, without):
        assert each.dtype == np.int32
        assert ((each >= 0) & (each <= limits)).all()
    assert widths[drafting].tolist() == without[drafting].tolist()


def test_a_row_that_comes_back_pays_the_price_at_the_size_of_the_pass() -> None:
    # Free up to 64 tokens, then in proportion: dear only where the others fill the first 64.
    curve = CostCurve([64, 128, 256], [1000, 2000, 4000])
    rates, limits = np.full(33, 0.9, np.float32), np.full(33, 16, np.int32)
    last = np.arange(33) == 32
    assert choose(rates, limits, 33, curve, ~last)[32] <= 1
    assert choose(rates, limits, 33, CostCurve(), ~last)[32] == 16
    limits[:32] = 0
    assert choose(rates, limits, 33, curve, ~last)[32] == 16


def test_a_row_that_comes_back_is_held_to_the_goodput_of_the_others() -> None:
    # 10 us a draft; the others make 9 tokens of 1, and what they would make in that time is lost.
    curve = line(1000, 10)
    rates, limits = np.array([1, 0.9], np.float32), np.array([64, 64], np.int32)
    first = np.array([True, False])
    beside_drafts = choose(rates, limits, 2, curve, first)[1]
    limits[0] = 0
    assert beside_drafts < choose(rates, limits, 2, curve, first)[1]


# With a drafter.


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
    Case, row_sets, st.integers(0, 12), curves, st.sampled_from([1.0, 1.5, 4.0, 12.0]), draft_curves
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


@pytest.mark.parametrize("num_rows", [1, 16, 256])
@pytest.mark.parametrize("rate", [0.4, 0.7, 0.95])
@pytest.mark.parametrize("weight", [1.0, 8.0])
@pytest.mark.parametrize("step_us", [0, 30, 200])
def test_large_batches_of_equal_rows_draft_as_deep_as_is_best(
    num_rows: int, rate: float, weight: float, step_us: int
) -> None:
    drafting = CostCurve(range(1, 9), [100 + step_us * depth for depth in range(8)])
    rows: list[Row] = [(0.5, 0, False, rate, 8)] * num_rows
    case = Case(rows, 0, line(1000, 4), weight, drafting)
    uniform = np.repeat(np.arange(9, dtype=np.int32)[:, None], num_rows, axis=1)
    best = case.goodput(uniform).max()
    assert case.goodput(case.choose()[1]) >= best / 1.0205


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


@given(hazard_rows, st.integers(1, 800))
def test_no_other_number_of_drafts_of_windows_with_values_brings_more(
    rows: list[list[float]], us_per_token: int
) -> None:
    hazards, num_rows = hazards_of(rows), len(rows)
    curve = line(1000, us_per_token)
    limits = np.full(num_rows, 5, np.int32)
    choice = choose_goodput(
        np.full(num_rows, 0.5), limits, np.ones(num_rows, np.bool_), num_rows, curve, None, hazards
    )
    order = np.sort(hazards[np.isfinite(hazards)])
    tokens = num_rows + np.concatenate([[0], np.cumsum(np.exp(-order.astype(np.float64)))])
    goodputs = tokens / curve.cost(num_rows + np.arange(len(tokens)))
    assert goodputs[int(choice.widths.sum())] >= goodputs.max() / 1.0201


@given(hazard_rows, st.integers(1, 40), curves, st.floats(1e-8, 1e-5))
def test_drafts_are_worth_what_is_brought_on_the_average_in_their_time(
    rows: list[list[float]], num_tokens: int, curve: CostCurve, rate: float
) -> None:
    hazards = hazards_of(rows)
    most = np.isfinite(hazards).sum(axis=1, dtype=np.int32)
    worth = Prices(rate, curve).choose_worth(
        num_tokens, most, lambda depth: (hazards <= depth).sum(axis=1, dtype=np.int32)
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
    calibration, acceptance = Calibration(1), Acceptance(1, WINDOW_PRIOR)
    for agreed, is_rejected in passes:
        examined = ints(agreed + is_rejected)
        acceptance.observe(ints(0), ints(agreed), examined)
        estimated = examined * np.float32(PRIOR_HAZARD)
        nowhere = np.zeros(1, np.bool_)
        calibration.observe(ints(0), ints(agreed), examined, estimated, nowhere, nowhere)
    rate = acceptance.rate(ints(0))
    rates, scales = calibration.weigh(ints(0))
    assert rates == pytest.approx(rate, rel=1e-5)
    hazard = max(-float(np.log(rate[0])), 1 / 1024)
    assert scales[0] * PRIOR_HAZARD == pytest.approx(hazard, rel=1e-3)
    assert calibration.common_scale == pytest.approx(1)
