import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.core.acceptance import expected_accepted
from optimist_scheduler.core.cost import CostCurve
from optimist_scheduler.core.goodput import MIN_GAIN, choose_goodput

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

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


def choose(rates: Float32Array, limits: Int32Array, base: int, curve: CostCurve) -> Int32Array:
    return choose_goodput(rates, limits, base, curve, len(rates))


def goodput(rates: Float32Array, widths: Int32Array, base: int, curve: CostCurve) -> float:
    tokens = len(rates) + expected_accepted(rates, widths).sum()
    return float(tokens / curve.cost(base + int(widths.sum())))


def line(fixed_us: float, us_per_token: float) -> CostCurve:
    sizes = [2**i for i in range(13)]
    return CostCurve(sizes, [round(fixed_us + us_per_token * size) for size in sizes])


def full(num_rows: int, rate: float, limit: int) -> tuple[Float32Array, Int32Array]:
    return np.full(num_rows, rate, np.float32), np.full(num_rows, limit, np.int32)


@given(st.lists(st.tuples(rates, st.integers(0, 64)), max_size=60), st.integers(0, 600), curves)
def test_widths_stay_within_the_limits(
    rows: list[tuple[float, int]], num_prefill_tokens: int, curve: CostCurve
) -> None:
    rates = np.array([rate for rate, _ in rows], np.float32)
    limits = np.array([limit for _, limit in rows], np.int32)
    widths = choose(rates, limits, len(rows) + num_prefill_tokens, curve)
    assert widths.dtype == np.int32
    assert (widths >= 0).all()
    assert (widths <= limits).all()


@given(
    st.lists(st.tuples(rates, st.integers(0, 5)), min_size=1, max_size=4),
    st.integers(0, 12),
    curves,
)
def test_no_other_widths_are_more_than_2_percent_better(
    rows: list[tuple[float, int]], num_prefill_tokens: int, curve: CostCurve
) -> None:
    rates = np.array([rate for rate, _ in rows], np.float32)
    limits = np.array([limit for _, limit in rows], np.int32)
    base = len(rows) + num_prefill_tokens
    choices = itertools.product(*(range(limit + 1) for limit in limits))
    every = np.array(list(choices), np.int32)
    tokens = len(rows) + expected_accepted(rates, every).sum(axis=1)
    most = (tokens / curve.cost(base + every.sum(axis=1))).max()
    assert goodput(rates, choose(rates, limits, base, curve), base, curve) >= most / 1.0205


@given(st.lists(rates, min_size=1, max_size=64), st.integers(0, 64), curves)
def test_no_uniform_width_is_better_by_more_than_the_gain_that_is_asked_for(
    rates: list[float], limit: int, curve: CostCurve
) -> None:
    row_rates = np.array(rates, np.float32)
    widths = choose(row_rates, np.full(len(rates), limit, np.int32), len(rates), curve)
    chosen = goodput(row_rates, widths, len(rates), curve)
    for width in range(limit + 1):
        uniform = goodput(row_rates, np.full(len(rates), width, np.int32), len(rates), curve)
        assert chosen >= uniform * (0.995 if widths.any() else 1 / 1.0205)


@given(st.lists(rates, min_size=2, max_size=64), st.integers(1, 64), curves)
def test_higher_agreement_never_gives_a_smaller_width_than_another_row_s(
    rates: list[float], limit: int, curve: CostCurve
) -> None:
    row_rates = np.sort(np.array(rates, np.float32))
    widths = choose(row_rates, np.full(len(rates), limit, np.int32), len(rates), curve)
    distinct = np.diff(row_rates) > 0
    assert (np.diff(widths)[distinct] >= 0).all()


@pytest.mark.parametrize("num_rows", [1, 8, 256])
@pytest.mark.parametrize("us_per_token", [1.0, 10.0, 100.0])
def test_higher_agreement_of_all_never_gives_fewer_drafts(
    num_rows: int, us_per_token: float
) -> None:
    curve = line(2000, us_per_token)
    totals = [
        int(choose(*full(num_rows, rate, 64), num_rows, curve).sum())
        for rate in np.linspace(0, 1, 60)
    ]
    assert totals == sorted(totals)
    assert totals[0] == 0
    assert totals[-1] > 8 * num_rows


@pytest.mark.parametrize("num_rows", [1, 8, 256])
def test_costlier_tokens_never_give_more_drafts(num_rows: int) -> None:
    rates = np.random.default_rng(num_rows).uniform(0.3, 0.99, num_rows).astype(np.float32)
    limits = np.full(num_rows, 64, np.int32)
    totals = [
        int(choose(rates, limits, num_rows, line(2000, us_per_token)).sum())
        for us_per_token in np.geomspace(0.5, 4000, 25)
    ]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] > 5 * num_rows
    assert totals[-1] == 0


def test_free_drafts_of_trusted_rows_fill_the_limit() -> None:
    assert choose(*full(3, 0.98, 64), 3, CostCurve()).tolist() == [64] * 3


def test_drafts_are_off_below_the_gain() -> None:
    rates, limits = full(4, 0.5, 8)
    for us_per_token in np.geomspace(1, 1000, 50):
        curve = line(1000, us_per_token)
        widths = choose(rates, limits, 4, curve)
        gain = goodput(rates, widths, 4, curve) / goodput(rates, np.zeros_like(limits), 4, curve)
        assert gain >= MIN_GAIN * 0.9999 if widths.any() else gain == 1


def test_a_step_in_the_cost_is_filled_up_to_its_edge() -> None:
    # 40 rows alike: no width of all ends at the 64 tokens that cost as much as 32.
    curve = CostCurve([32, 64, 128], [1000, 1000, 9000])
    widths = choose(*full(40, 0.9, 16), 40, curve)
    assert sorted(widths.tolist()) == [0] * 16 + [1] * 24


def test_a_prefill_in_the_pass_makes_drafts_cheaper() -> None:
    curve = line(100, 20)
    rates, limits = full(8, 0.7, 32)
    assert choose(rates, limits, 2000, curve).sum() > choose(rates, limits, 8, curve).sum()


def test_rows_that_emit_without_drafting_count() -> None:
    rates, limits = full(1, 0.5, 8)
    curve = CostCurve([64, 128], [1000, 9000])
    assert choose_goodput(rates, limits, 64, curve, 64).sum() == 0
    assert choose_goodput(rates, limits, 64, curve, 1).sum() > 0


@given(st.lists(rates, min_size=1, max_size=40), curves)
def test_the_same_question_has_the_same_answer(rates: list[float], curve: CostCurve) -> None:
    row_rates = np.array(rates, np.float32)
    limits = np.full(len(rates), 32, np.int32)
    first = choose(row_rates, limits, len(rates), curve)
    assert choose(row_rates.copy(), limits.copy(), len(rates), curve).tolist() == first.tolist()
