from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.core.width.acceptance import AdaptiveWidths
from tests.scheduler.situation import ints


def make_widths(*limits: int) -> AdaptiveWidths:
    widths = AdaptiveWidths(len(limits))
    for slot, limit in enumerate(limits):
        widths.reset(slot, limit)
    return widths


def test_a_request_starts_at_five_or_its_limit() -> None:
    assert make_widths(8, 5, 3, 0).choose(ints(0, 1, 2, 3)).tolist() == [5, 5, 3, 0]


def test_a_width_moves_by_one_with_the_share_of_all_drafts_so_far() -> None:
    widths = make_widths(8, 8, 8)
    slots = ints(0, 1, 2)
    widths.observe(slots, ints(10, 10, 10), ints(9, 5, 7))
    assert widths.choose(slots).tolist() == [6, 4, 5]
    # 9 of 12, 15 of 20 and 8 of 20: the shares since the start, not of this pass.
    widths.observe(slots, ints(2, 10, 10), ints(0, 10, 1))
    assert widths.choose(slots).tolist() == [6, 4, 4]


def test_the_bounds_of_the_rule_are_exclusive() -> None:
    widths = make_widths(8, 8)
    widths.observe(ints(0, 1), ints(20, 20), ints(17, 11))
    assert widths.choose(ints(0, 1)).tolist() == [5, 5]


def test_a_row_without_drafts_is_left_alone() -> None:
    widths = make_widths(8, 0)
    widths.observe(ints(0, 1), ints(0, 0), ints(0, 0))
    assert widths.choose(ints(0, 1)).tolist() == [5, 0]


def test_a_slot_starts_anew() -> None:
    widths = make_widths(8)
    widths.observe(ints(0), ints(100), ints(0))
    widths.reset(0, 6)
    widths.observe(ints(0), ints(10), ints(9))
    assert widths.choose(ints(0)).tolist() == [6]


@given(st.integers(0, 64), st.lists(st.tuples(st.integers(0, 64), st.floats(0, 1)), max_size=80))
def test_a_width_stays_within_its_bounds(limit: int, passes: list[tuple[int, float]]) -> None:
    widths = make_widths(limit)
    for drafted, share in passes:
        widths.observe(ints(0), ints(drafted), ints(int(drafted * share)))
        assert min(1, limit) <= widths.choose(ints(0))[0] <= limit
