"""What is learnt of how many drafts are accepted, and the widths of the policy `adaptive`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.core.width.acceptance import Acceptance, AdaptiveWidths, expected_accepted
from optimist_scheduler.core.windows.window import WINDOW_PRIOR
from tests.scheduler.situation import ints


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


def make_widths(*limits: int) -> AdaptiveWidths:
    widths = AdaptiveWidths(len(limits))
    for slot, limit in enumerate(limits):
        widths.reset(slot, limit)
    return widths


def test_a_width_moves_by_one_with_the_share_of_all_drafts_so_far() -> None:
    widths, slots = make_widths(8, 8, 8, 8, 8, 0), ints(0, 1, 2, 3, 4, 5)
    # The bounds are exclusive, and a row without drafts is left alone.
    widths.observe(slots, ints(10, 10, 10, 20, 20, 0), ints(9, 5, 7, 17, 11, 0))
    assert widths.choose(slots).tolist() == [6, 4, 5, 5, 5, 0]
    # 9 of 12, 15 of 20 and 8 of 20: the shares since the start, not of this pass.
    widths.observe(slots, ints(2, 10, 10, 0, 0, 0), ints(0, 10, 1, 0, 0, 0))
    assert widths.choose(slots).tolist() == [6, 4, 4, 5, 5, 0]
    widths.reset(2, 6)
    widths.observe(slots, ints(0, 0, 10, 0, 0, 0), ints(0, 0, 9, 0, 0, 0))
    assert widths.choose(slots).tolist() == [6, 4, 6, 5, 5, 0]


@given(st.integers(0, 64), st.lists(st.tuples(st.integers(0, 64), st.floats(0, 1)), max_size=80))
def test_a_width_stays_within_its_bounds(limit: int, passes: list[tuple[int, float]]) -> None:
    widths = make_widths(limit)
    for drafted, share in passes:
        widths.observe(ints(0), ints(drafted), ints(int(drafted * share)))
        assert min(1, limit) <= widths.choose(ints(0))[0] <= limit
