import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.core.width.acceptance import expected_accepted
from optimist_scheduler.core.width.crossover import should_use_speculation


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


@given(st.floats(0, 1), st.integers(0, 64))
def test_expected_accepted_is_the_sum_of_powers(rate: float, num_drafts: int) -> None:
    powers = sum(rate**i for i in range(1, num_drafts + 1))
    assert float(expected_accepted(rate, num_drafts)) == pytest.approx(powers, rel=1e-5, abs=1e-9)
