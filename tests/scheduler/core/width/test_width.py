from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.width.widths import PROBE_PERIOD, DraftWidthPolicy, DraftWidths
from optimist_scheduler.core.windows.window import PRIOR_HAZARD
from tests.scheduler.situation import ints

POLICIES: tuple[DraftWidthPolicy, ...] = get_args(DraftWidthPolicy)
# 1 ms, and 1 ms more per 64 tokens.
DEAR = CostCurve([1, 64, 1024], [1016, 2000, 17000])
NO_PROBE = 1
"""A choice in which none of the first slots is probed."""


def make_widths(policy: DraftWidthPolicy, *limits: int) -> DraftWidths:
    widths = DraftWidths(policy, len(limits))
    for slot, limit in enumerate(limits):
        widths.admit(slot, limit)
    return widths


def choose(widths: DraftWidths, slots: npt.NDArray[np.int32], choice: int = NO_PROBE) -> list[int]:
    drafting = np.ones(len(slots), np.bool_)
    chosen = widths.choose(slots, drafting, len(slots), DEAR, CostCurve(), choice)
    return [int(width) for width in chosen.windows]


def observe(
    widths: DraftWidths,
    slots: npt.NDArray[np.int32],
    drafted: npt.NDArray[np.int32],
    accepted: npt.NDArray[np.int32],
) -> None:
    """Lets widths learn from windows without values."""
    estimated = np.minimum(accepted + 1, drafted) * np.float32(PRIOR_HAZARD)
    widths.observe(slots, drafted, accepted, estimated, np.zeros(len(slots), np.bool_))


def disappoint(widths: DraftWidths, slot: int, times: int = 300) -> None:
    for _ in range(times):
        observe(widths, ints(slot), ints(1), ints(0))
        widths.observe_drafts(ints(slot), ints(1), ints(0))


@pytest.mark.parametrize(
    ("policy", "width"), [("fixed", 40), ("goodput", 40), ("crossover", 40), ("adaptive", 5)]
)
def test_a_new_request_begins_optimistic(policy: DraftWidthPolicy, width: int) -> None:
    widths = DraftWidths(policy, 3)
    assert widths.admit(1, 40) == (width, 0)
    assert widths.admit(2, 0) == (0, 0)


@pytest.mark.parametrize("policy", ["goodput", "crossover"])
def test_a_row_that_is_rejected_is_switched_off_and_the_others_stay(
    policy: DraftWidthPolicy,
) -> None:
    widths = make_widths(policy, 8, 8, 8)
    disappoint(widths, 1)
    chosen = choose(widths, ints(0, 1, 2))
    assert chosen[1] == 0
    assert min(chosen[0], chosen[2]) > 0


@pytest.mark.parametrize("policy", ["goodput", "crossover"])
def test_one_rejection_does_not_switch_off(policy: DraftWidthPolicy) -> None:
    widths = make_widths(policy, 16)
    disappoint(widths, 0, times=1)
    assert choose(widths, ints(0))[0] > 0


@pytest.mark.parametrize("policy", ["goodput", "crossover"])
def test_a_row_comes_back_through_the_tokens_that_are_compared_for_free(
    policy: DraftWidthPolicy,
) -> None:
    widths = make_widths(policy, 8, 8)
    disappoint(widths, 0)
    assert choose(widths, ints(0, 1))[0] == 0
    for _ in range(200):
        observe(widths, ints(0), ints(1), ints(1))
    assert choose(widths, ints(0, 1))[0] > 0


@pytest.mark.parametrize("policy", ["goodput", "crossover"])
def test_a_row_that_is_off_is_probed_once_in_so_many_choices(policy: DraftWidthPolicy) -> None:
    widths = make_widths(policy, 8, 8, 0)
    for slot in range(3):
        disappoint(widths, slot)
    chosen = np.array([choose(widths, ints(0, 1, 2), i) for i in range(2 * PROBE_PERIOD)])
    assert chosen.sum(axis=0).tolist() == [2, 2, 0]
    assert chosen.max() == 1
    assert chosen.sum(axis=1).max() == 1


@pytest.mark.parametrize("policy", ["goodput", "crossover"])
def test_a_row_that_has_lost_its_draft_is_not_trusted_anew(policy: DraftWidthPolicy) -> None:
    widths = make_widths(policy, 16, 16, 16)
    disappoint(widths, 1)
    chosen = widths.choose(
        ints(0, 1, 2), np.array([True, False, False]), 3, DEAR, CostCurve(), NO_PROBE
    ).windows
    assert chosen[1] == 0
    assert min(chosen[0], chosen[2]) > 0


def test_a_draft_behind_a_rejected_one_is_not_held_against_the_row() -> None:
    # Each pass 3 agree, the fourth does not, and 28 more stand behind it: 3 of 4, not 3 of 32.
    widths = make_widths("goodput", 32)
    for _ in range(100):
        observe(widths, ints(0), ints(32), ints(3))
    free = widths.choose(
        ints(0), np.ones(1, np.bool_), 1, CostCurve([1, 64], [1000, 1100]), CostCurve(), 0
    ).windows
    assert free[0] >= 4


@pytest.mark.parametrize("policy", ["goodput", "crossover", "adaptive"])
def test_a_new_request_in_the_slot_starts_anew(policy: DraftWidthPolicy) -> None:
    widths = make_widths(policy, 8, 8)
    fresh = choose(widths, ints(0, 1))
    disappoint(widths, 0)
    assert choose(widths, ints(0, 1)) != fresh
    widths.admit(0, 8)
    assert choose(widths, ints(0, 1)) == fresh


@pytest.mark.parametrize("policy", POLICIES)
def test_no_rows_is_no_widths(policy: DraftWidthPolicy) -> None:
    assert choose(DraftWidths(policy, 4), ints()) == []


@given(
    st.sampled_from(POLICIES),
    st.lists(st.integers(0, 64), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 19), st.integers(0, 64), st.floats(0, 1)), max_size=60),
    st.integers(0, 200),
)
def test_widths_are_within_the_limits_and_follow_from_what_was_observed(
    policy: DraftWidthPolicy, limits: list[int], passes: list[tuple[int, int, float]], choice: int
) -> None:
    first, second = make_widths(policy, *limits), make_widths(policy, *limits)
    slots = np.arange(len(limits), dtype=np.int32)
    for number, drafted, share in passes:
        row = ints(number % len(limits)), ints(drafted), ints(int(drafted * share))
        for widths in (first, second):
            observe(widths, *row)
            widths.observe_drafts(*row)
        chosen = choose(first, slots, choice)
        assert all(0 <= width <= limit for width, limit in zip(chosen, limits, strict=True))
    assert choose(first, slots, choice) == choose(second, slots, choice)
