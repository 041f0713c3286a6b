import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.core.width.acceptance import Acceptance, expected_accepted
from optimist_scheduler.core.windows.window import WINDOW_PRIOR
from tests.scheduler.situation import ints


def test_one_rejection_costs_little_and_a_run_of_them_much() -> None:
    acceptance = Acceptance(1, WINDOW_PRIOR)
    acceptance.observe(ints(0), ints(0), ints(1))
    assert acceptance.rate(ints(0))[0] > 0.9
    for _ in range(15):
        acceptance.observe(ints(0), ints(0), ints(1))
    assert acceptance.rate(ints(0))[0] < 0.5
    for _ in range(200):
        acceptance.observe(ints(0), ints(0), ints(1))
    assert acceptance.rate(ints(0))[0] < 0.02


def test_rows_are_independent_and_a_row_without_drafts_stays() -> None:
    acceptance = Acceptance(4, WINDOW_PRIOR)
    acceptance.observe(ints(3, 1), ints(0, 0), ints(9, 0))
    rates = acceptance.rate(ints(0, 1, 2, 3))
    assert rates[:3] == pytest.approx([WINDOW_PRIOR] * 3)
    assert rates[3] < 0.7


@given(st.lists(st.tuples(st.integers(0, 64), st.booleans()), max_size=200))
def test_rates_are_chances(passes: list[tuple[int, bool]]) -> None:
    acceptance = Acceptance(1, WINDOW_PRIOR)
    for agreed, rejected in passes:
        acceptance.observe(ints(0), ints(agreed), ints(agreed + rejected))
        assert 0 <= acceptance.rate(ints(0))[0] <= 1 + 1e-6


@given(st.floats(0, 1), st.integers(0, 64))
def test_expected_accepted_is_the_sum_of_powers(rate: float, num_drafts: int) -> None:
    powers = sum(rate**i for i in range(1, num_drafts + 1))
    assert float(expected_accepted(rate, num_drafts)) == pytest.approx(powers, rel=1e-5, abs=1e-9)
