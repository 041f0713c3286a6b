import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.width.acceptance import expected_accepted
from optimist_scheduler.core.width.crossover import choose_crossover, should_use_speculation

# 1 ms up to 64 tokens, then 10 us more per token.
CURVE = CostCurve([1, 64, 128, 256], [1000, 1000, 1640, 2920])

rows = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 64)), max_size=40)


def choose(
    rates: npt.NDArray[np.floating], limits: npt.NDArray[np.int32], base: int, curve: CostCurve
) -> npt.NDArray[np.int32]:
    widths, levels = choose_crossover(rates, limits, np.ones(len(rates), np.bool_), base, curve)
    assert not levels.any()
    return widths


@pytest.mark.parametrize(
    ("question", "avg_accepted", "speedup"),
    # Rate and number of drafts; times of a draft, of verification and of a plain pass.
    [
        # 0.8 + 0.64 + 0.512; (1 + 1.952) / (3 * 2 + 30) * 25
        ((0.8, 3, 2.0, 30.0, 25.0), 1.952, 2.05),
        # 0.5 + 0.25; (1 + 0.75) / (2 * 5 + 10) * 10
        ((0.5, 2, 5.0, 10.0, 10.0), 0.75, 0.875),
        ((1.0, 4, 0.0, 10.0, 10.0), 4.0, 5.0),
        ((0.0, 4, 0.0, 10.0, 10.0), 0.0, 1.0),
        ((0.9, 0, 1.0, 10.0, 10.0), 0.0, 1.0),
    ],
)
def test_numbers_worked_out_by_hand(
    question: tuple[float, int, float, float, float], avg_accepted: float, speedup: float
) -> None:
    crossover = should_use_speculation(*question)
    assert float(crossover.avg_accepted) == pytest.approx(avg_accepted, abs=1e-6)
    assert float(crossover.speedup) == pytest.approx(speedup, abs=1e-6)


def test_drafts_pay_once_what_is_accepted_exceeds_what_the_time_grows_by() -> None:
    # One draft at rate a: 1 + a tokens in 1.5 times the time.
    crossover = should_use_speculation([0.49, 0.51], 1, 2.0, 13.0, 10.0)
    assert crossover.is_beneficial.tolist() == [False, True]


def test_good_rows_keep_their_drafts_among_bad_ones() -> None:
    rates = np.full(200, 0.1)
    rates[77] = 0.98
    widths = choose(rates, np.full(200, 64, np.int32), 200, CURVE)
    assert np.flatnonzero(widths).tolist() == [77]


@given(rows, st.integers(0, 500))
def test_every_row_that_drafts_gains_in_the_pass_that_comes_about(
    rows: list[tuple[float, int]], num_prefill_tokens: int
) -> None:
    rates = np.array([rate for rate, _ in rows], np.float32)
    limits = np.array([limit for _, limit in rows], np.int32)
    base = len(rows) + num_prefill_tokens
    widths = choose(rates, limits, base, CURVE)
    assert ((widths == 0) | (widths == limits)).all()
    growth = float(CURVE.cost(base + int(widths.sum())) / CURVE.cost(base))
    assert (1 + expected_accepted(rates, widths)[widths > 0] > growth * (1 - 1e-9)).all()


@given(
    st.lists(st.integers(0, 100), min_size=2, max_size=40, unique=True),
    st.integers(1, 64),
    st.integers(1, 500),
)
def test_with_one_limit_no_row_loses_to_a_worse_one(
    percents: list[int], limit: int, base: int
) -> None:
    rates = np.sort(np.array(percents) / 100)
    widths = choose(rates, np.full(len(rates), limit, np.int32), base, CURVE)
    assert (np.diff(widths) >= 0).all()


def test_rows_without_drafts_are_judged_one_by_one_and_cost_nothing() -> None:
    rates = np.array([0.9, 0.9, 0.9, 0.05])
    limits = np.full(4, 64, np.int32)
    drafting = np.array([True, False, False, False])
    assert choose_crossover(rates, limits, drafting, 4, CURVE)[0].tolist() == [64, 64, 64, 0]
    crowd = np.full(200, 0.9), np.full(200, 64, np.int32)
    assert choose(*crowd, 200, CURVE).sum() < 200 * 64


@given(st.floats(0, 1), st.integers(0, 64))
def test_expected_accepted_is_the_sum_of_powers(rate: float, num_drafts: int) -> None:
    powers = sum(rate**i for i in range(1, num_drafts + 1))
    assert float(expected_accepted(rate, num_drafts)) == pytest.approx(powers, rel=1e-5, abs=1e-9)
