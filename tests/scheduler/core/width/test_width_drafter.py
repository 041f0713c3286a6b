"""How much of the worker's drafter rows get: what is learnt, chosen, and probed."""

import numpy as np
import pytest

from optimist_aligner.cost import CostCurve
from optimist_common.drafts import DraftSource
from optimist_scheduler.core.width.acceptance import DRAFTER_PRIOR, Acceptance, Drafter, DrafterRows
from optimist_scheduler.core.width.crossover import choose_crossover
from optimist_scheduler.core.width.widths import (
    PROBE_PERIOD,
    PROBE_SHARE,
    DraftWidthPolicy,
    DraftWidths,
)
from tests.scheduler.situation import ints

CHAIN = Drafter(DraftSource.DRAFT_MODEL, 4, 4)
TREE = Drafter(DraftSource.EAGLE, 12, 3)
# 1 ms, and 1 ms more per 64 tokens.
CURVE = CostCurve([1, 64, 1024], [1016, 2000, 17000])
FAST = CostCurve(range(1, 5), [50, 100, 150, 200])
SLOW = CostCurve(range(1, 5), [2000, 4000, 6000, 8000])
NO_PROBE = 1


def make_widths(policy: DraftWidthPolicy, drafter: Drafter, *limits: int) -> DraftWidths:
    widths = DraftWidths(policy, len(limits), drafter)
    for slot, limit in enumerate(limits):
        widths.admit(slot, limit)
    return widths


def choose(
    widths: DraftWidths, num_rows: int, times: CostCurve = FAST, choice: int = NO_PROBE
) -> list[int]:
    """Returns what rows without windows get of the drafter."""
    slots, nobody = np.arange(num_rows, dtype=np.int32), np.zeros(num_rows, np.bool_)
    chosen: list[int] = widths.choose(
        slots, nobody, num_rows, CURVE, times, choice
    ).drafter.tolist()
    return chosen


def teach(widths: DraftWidths, slot: int, accepted: int, drafted: int = 4, times: int = 60) -> None:
    for _ in range(times):
        widths.observe_drafter(ints(slot), ints(drafted), ints(accepted))


@pytest.mark.parametrize(
    ("policy", "first"), [("fixed", 12), ("goodput", 12), ("crossover", 12), ("adaptive", 12)]
)
def test_a_new_request_begins_with_all_that_the_drafter_makes(
    policy: DraftWidthPolicy, first: int
) -> None:
    widths = DraftWidths(policy, 4, TREE)
    assert widths.admit(0, 40)[1] == first
    # Smaller limits get smaller trees.
    assert [widths.admit(1, limit)[1] for limit in (0, 1, 5)] == [0, 1, 5]


def test_fixed_is_the_smaller_of_the_limits_whatever_happens() -> None:
    widths = make_widths("fixed", TREE, 7, 0, 40)
    teach(widths, 2, 0)
    assert choose(widths, 3, SLOW) == [7, 0, 12]


@pytest.mark.parametrize("policy", ["goodput", "crossover"])
def test_a_drafter_that_is_too_slow_is_off(policy: DraftWidthPolicy) -> None:
    widths = make_widths(policy, CHAIN, 40, 40)
    assert min(choose(widths, 2)) > 0
    assert choose(widths, 2, SLOW) == [0, 0]


@pytest.mark.parametrize("policy", ["goodput", "crossover", "adaptive"])
def test_rows_that_are_rejected_get_less_and_the_others_stay(policy: DraftWidthPolicy) -> None:
    widths = make_widths(policy, CHAIN, 40, 40)
    for _ in range(60):
        teach(widths, 0, 4, times=1)
        teach(widths, 1, 0, times=1)
    chosen = choose(widths, 2)
    assert chosen[1] < chosen[0] == 4


def test_of_a_tree_levels_are_examined_and_not_nodes() -> None:
    widths = make_widths("goodput", TREE, 40)
    # Two of three levels each pass: two of the three examined ones agreed.
    teach(widths, 0, accepted=2, drafted=12, times=200)
    assert widths.rate_of_drafter(ints(0))[0] == pytest.approx(2 / 3, abs=0.01)
    # All of a tree that was cut to one level.
    teach(widths, 0, accepted=1, drafted=4, times=200)
    assert widths.rate_of_drafter(ints(0))[0] > 0.95


def test_a_new_row_is_trusted_as_much_as_the_rows_before_it() -> None:
    acceptance = Acceptance(3, DRAFTER_PRIOR)
    assert acceptance.rate(ints(2))[0] == pytest.approx(DRAFTER_PRIOR)
    for _ in range(200):
        acceptance.observe(ints(0, 1), ints(1, 0), ints(5, 5))
    acceptance.reset(2)
    assert acceptance.rate(ints(2))[0] == pytest.approx(0.1, abs=0.01)
    for _ in range(200):
        acceptance.observe(ints(0, 1), ints(5, 4), ints(5, 5))
    acceptance.reset(2)
    assert acceptance.rate(ints(2))[0] == pytest.approx(0.9, abs=0.02)


def test_new_requests_begin_with_what_the_others_have() -> None:
    widths = make_widths("goodput", CHAIN, 40, 40)
    slots, nobody = ints(0, 1), np.zeros(2, np.bool_)
    widths.remember(slots, widths.choose(slots, nobody, 2, CURVE, SLOW, NO_PROBE), nobody)
    assert widths.admit(0, 40)[1] == 0
    widths.remember(slots, widths.choose(slots, nobody, 2, CURVE, FAST, NO_PROBE), nobody)
    assert widths.admit(0, 40)[1] > 0


def test_rows_for_which_the_drafter_is_off_are_probed_together_and_seldom() -> None:
    num_rows = 32
    widths = make_widths("goodput", TREE, *[40] * num_rows)
    for slot in range(num_rows):
        teach(widths, slot, 0, 12, times=300)
    choices = range(PROBE_PERIOD * PROBE_SHARE)
    cheap = CostCurve([1, 2, 4], [10, 20, 30])
    chosen = np.array([choose(widths, num_rows, cheap, choice) for choice in choices])
    assert set(chosen.ravel().tolist()) == {0, 4}
    assert (chosen > 0).sum(axis=0).tolist() == [1] * num_rows
    assert (chosen.any(axis=1)).sum() == PROBE_SHARE
    # The more the drafter takes, the less often: no more than a hundredth of the time.
    costs = [
        float(CURVE.cost(num_rows + row.sum()) + SLOW.cost(1) * bool(row.any()))
        for row in (np.array(choose(widths, num_rows, SLOW, choice)) for choice in range(4000))
    ]
    assert sum(costs) <= 4000 * float(CURVE.cost(num_rows)) * 1.011


def test_crossover_leaves_the_drafter_out_where_windows_alone_bring_more() -> None:
    # The drafter would pay for its rows, at a price that the rows with windows pay as well.
    rates, limits = np.array([0.9, 0.9, 0.9, 0.5]), ints(8, 8, 8, 8)
    has_window = np.array([True, True, True, False])
    drafter = DrafterRows(np.full(4, 0.8), ints(4, 4, 4, 4), 1.0, CostCurve([1], [1500]))
    widths, levels = choose_crossover(rates, limits, has_window, 4, CURVE, drafter)
    assert widths[:3].tolist() == [8, 8, 8]
    assert levels[3] == 0
    nobody = np.zeros(4, np.bool_)
    assert choose_crossover(rates, limits, nobody, 4, CURVE, drafter)[1].tolist() == [4] * 4
