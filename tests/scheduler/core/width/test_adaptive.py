import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.core.width.acceptance import AdaptiveWidths


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def make_widths(*limits: int) -> AdaptiveWidths:
    widths = AdaptiveWidths(len(limits))
    for slot, limit in enumerate(limits):
        widths.reset(slot, limit)
    return widths


def test_a_request_starts_at_five_or_its_limit() -> None:
    assert make_widths(8, 5, 3, 0).choose(column(0, 1, 2, 3)).tolist() == [5, 5, 3, 0]


def test_a_width_moves_by_one_with_the_share_of_all_drafts_so_far() -> None:
    widths = make_widths(8, 8, 8)
    slots = column(0, 1, 2)
    widths.observe(slots, column(10, 10, 10), column(9, 5, 7))
    assert widths.choose(slots).tolist() == [6, 4, 5]
    # 9 of 12, 15 of 20 and 8 of 20: the shares since the start, not of this pass.
    widths.observe(slots, column(2, 10, 10), column(0, 10, 1))
    assert widths.choose(slots).tolist() == [6, 4, 4]


def test_the_bounds_of_the_rule_are_exclusive() -> None:
    widths = make_widths(8, 8)
    widths.observe(column(0, 1), column(20, 20), column(17, 11))
    assert widths.choose(column(0, 1)).tolist() == [5, 5]


def test_a_width_ends_at_one_and_at_the_limit() -> None:
    widths = make_widths(7, 7, 1)
    slots = column(0, 1, 2)
    for _ in range(10):
        widths.observe(slots, column(4, 4, 1), column(4, 0, 1))
    assert widths.choose(slots).tolist() == [7, 1, 1]


def test_a_row_without_drafts_is_left_alone() -> None:
    widths = make_widths(8, 0)
    widths.observe(column(0, 1), column(0, 0), column(0, 0))
    assert widths.choose(column(0, 1)).tolist() == [5, 0]


def test_a_slot_starts_anew() -> None:
    widths = make_widths(8)
    widths.observe(column(0), column(100), column(0))
    widths.reset(0, 6)
    widths.observe(column(0), column(10), column(9))
    assert widths.choose(column(0)).tolist() == [6]


@given(
    st.integers(0, 64),
    st.lists(st.tuples(st.integers(0, 64), st.floats(0, 1)), max_size=80),
)
def test_a_width_stays_within_its_bounds(limit: int, passes: list[tuple[int, float]]) -> None:
    widths = make_widths(limit)
    for drafted, share in passes:
        widths.observe(column(0), column(drafted), column(int(drafted * share)))
        assert min(1, limit) <= widths.choose(column(0))[0] <= limit
