import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.acceptance.sampling_table import Needs
from optimist_worker.core.batch.host_view import HeldSlot, StepBounds, find_bounds, round_up
from optimist_worker.core.plan import PlannedRow

NEEDS = Needs(False, False, False, False, 0, False, False)
SIZES = (
    *("num_rows", "num_tokens", "num_logits", "max_num_queries", "max_num_keys"),
    *("max_num_drafts", "max_unseen", "num_unseen"),
)


def bounds_of(rows: list[tuple[int, int, int]]) -> StepBounds:
    """Bounds of rows: known tokens, drafts, and blocks that they hold, of one token each."""
    planned = [PlannedRow(slot, row[0], row[1], []) for slot, row in enumerate(rows)]
    held = [HeldSlot("", 0, blocks, None, num_unseen=drafts + 4) for _, drafts, blocks in rows]
    return find_bounds(planned, held, 1, NEEDS)


def test_bounds_are_those_of_the_plan() -> None:
    bounds = bounds_of([(1, 8, 32), (40, 0, 64), (3, 2, 16)])
    assert [getattr(bounds, name) for name in SIZES] == [3, 54, 13, 40, 64, 8, 12, 18]


@given(st.integers(0, 10**6))
def test_the_next_size_is_never_half_as_large_again(number: int) -> None:
    rounded = round_up(number)
    assert number <= rounded <= max(2, 1.5 * number)
    # A power of two, or one and a half of it.
    power = 1 << max(0, rounded.bit_length() - 1)
    assert rounded in (0, power, power + power // 2)


A_ROW = st.tuples(st.integers(1, 300), st.integers(0, 64), st.integers(0, 5000))


@given(rows=st.lists(A_ROW, min_size=1, max_size=70), most=st.integers(1, 4096))
def test_rounded_bounds_cover_the_plan_and_are_stable(
    rows: list[tuple[int, int, int]], most: int
) -> None:
    bounds = bounds_of(rows)
    rounded = bounds.rounded(most)
    for name in SIZES:
        assert getattr(rounded, name) >= getattr(bounds, name), name
    # Not more than any pass may hold, unless the plan itself has more.
    assert rounded.num_tokens <= max(most, bounds.num_tokens)
    unrounded = [field.name for field in dataclasses.fields(bounds) if field.name not in SIZES]
    assert all(getattr(rounded, name) == getattr(bounds, name) for name in unrounded)
    assert rounded.rounded(most) == rounded
