"""How much rows draft, of windows and with the drafter: what is learnt, chosen and probed."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from optimist_aligner.cost import CostCurve
from optimist_common.drafts import DraftSource
from optimist_scheduler.core.base.values import Float32Array, Int32Array
from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.core.width.widths import PROBE_PERIOD, PROBE_SHARE, DraftWidths
from optimist_scheduler.core.windows.window import PRIOR_HAZARD
from tests.scheduler.situation import ints

CHAIN = Drafter(DraftSource.DRAFT_MODEL, 4, 4)
TREE = Drafter(DraftSource.EAGLE, 12, 3)
# 1 ms, and 1 ms more per 64 tokens.
CURVE = CostCurve([1, 64, 1024], [1016, 2000, 17000])
FAST = CostCurve(range(1, 5), [50, 100, 150, 200])
SLOW = CostCurve(range(1, 5), [2000, 4000, 6000, 8000])
NO_PROBE = 1
"""A choice in which none of the first slots is probed."""


def make_widths(*limits: int, drafter: Drafter | None = None) -> DraftWidths:
    widths = DraftWidths("goodput", len(limits), drafter)
    for slot, limit in enumerate(limits):
        widths.admit(slot, limit)
    return widths


def choose(
    widths: DraftWidths, has_draft: Sequence[bool], choice: int = NO_PROBE, curve: CostCurve = CURVE
) -> list[int]:
    """Returns what rows get of windows without values, which only some have now."""
    slots, drafting = np.arange(len(has_draft), dtype=np.int32), np.array(has_draft, np.bool_)
    widths.choose(slots, drafting, len(slots), curve, CostCurve(), choice)
    most, firsts = widths.limits[slots], np.full(len(slots), PRIOR_HAZARD, np.float32)

    def count(depths: Float32Array) -> Int32Array:
        counts: Int32Array = np.minimum(most, depths / PRIOR_HAZARD).astype(np.int32)
        return counts

    chosen = widths.choose_paying(slots, len(slots), most, count, np.ones_like(most), firsts)
    return [int(width) for width in chosen]


def choose_drafter(
    widths: DraftWidths, num_rows: int, times: CostCurve = FAST, choice: int = NO_PROBE
) -> list[int]:
    """Returns what rows without windows get of the drafter."""
    slots, nobody = np.arange(num_rows, dtype=np.int32), np.zeros(num_rows, np.bool_)
    chosen = widths.choose(slots, nobody, num_rows, CURVE, times, choice)
    return [int(width) for width in chosen]


def observe(
    widths: DraftWidths,
    slots: npt.NDArray[np.int32],
    drafted: npt.NDArray[np.int32],
    accepted: npt.NDArray[np.int32],
) -> None:
    """Lets widths learn from windows without values."""
    examined = np.minimum(accepted + 1, drafted)
    estimated = examined * np.float32(PRIOR_HAZARD)
    firsts = np.full(len(slots), PRIOR_HAZARD, np.float32)
    widths.windows.observe(slots, accepted, examined, estimated, firsts)


def disappoint(widths: DraftWidths, slot: int, times: int = 300) -> None:
    for _ in range(times):
        observe(widths, ints(slot), ints(1), ints(0))


def teach(widths: DraftWidths, slot: int, accepted: int, drafted: int = 4, times: int = 60) -> None:
    for _ in range(times):
        widths.observe_drafter(ints(slot), ints(drafted), ints(accepted))


def test_a_model_drafts_beside_a_prompt_by_goodput_where_no_step_waits() -> None:
    widths = make_widths(8, drafter=CHAIN)
    assert widths.first(8, 0, uses_lookup=True, may_wait=False) == 4
    assert widths.first(8, 0, uses_lookup=True, may_wait=True) == 0


def test_a_row_is_switched_off_alone_and_comes_back_through_what_is_compared_for_free() -> None:
    widths = make_widths(8, 8, 8)
    disappoint(widths, 1, times=1)
    assert min(choose(widths, [True] * 3)) > 0
    disappoint(widths, 1)
    # Nor is a row trusted anew that has lost its draft.
    for has_draft in ([True] * 3, [True, False, False]):
        chosen = choose(widths, has_draft)
        assert chosen[1] == 0
        assert min(chosen[0], chosen[2]) > 0
    for _ in range(200):
        observe(widths, ints(1), ints(1), ints(1))
    assert choose(widths, [True] * 3)[1] > 0


def count_within(hazards: Float32Array, depths: Float32Array) -> Int32Array:
    return ints(int((hazards <= depths[0]).sum()))


def test_what_enters_a_window_is_learnt_apart_from_what_goes_on_in_it() -> None:
    widths, few = make_widths(64), np.full(1, 1 / 64, np.float32)
    for _ in range(80):
        # A token of which the window is not sure is always wrong, others are right.
        unsure = np.ones(1, np.float32)
        widths.windows.observe(ints(0), ints(0), ints(1), unsure, unsure)
        widths.windows.observe(ints(0), ints(4), ints(4), 4 * few, few)
    widths.choose(ints(0), np.ones(1, np.bool_), 1, CURVE, CostCurve(), NO_PROBE)
    for first, number in ((1.0, 0), (1 / 64, 16)):
        hazards = np.float32(first) + np.arange(16, dtype=np.float32) / np.float32(64)
        worth = widths.choose_paying(
            ints(0),
            1,
            ints(16),
            partial(count_within, hazards),
            ints(9),
            np.full(1, first, np.float32),
        )
        assert worth.tolist() == [number]


def test_a_new_request_in_the_slot_starts_with_what_all_have() -> None:
    widths = make_widths(8, 8)
    fresh = choose(widths, [True] * 2)
    disappoint(widths, 0)
    assert choose(widths, [True] * 2) != fresh
    for _ in range(100):
        observe(widths, ints(1), ints(40), ints(40))
    widths.admit(0, 8)
    assert choose(widths, [True] * 2) == fresh


# The worker's drafter.


def test_of_a_tree_levels_are_examined_and_not_nodes() -> None:
    widths = make_widths(40, drafter=TREE)
    # Two of three levels each pass: two of the three examined ones agreed.
    teach(widths, 0, accepted=2, drafted=12, times=200)
    assert widths.levels.rate(ints(0))[0] == pytest.approx(2 / 3, abs=0.01)
    # All of a tree that was cut to one level.
    teach(widths, 0, accepted=1, drafted=4, times=200)
    assert widths.levels.rate(ints(0))[0] > 0.95


def test_rows_for_which_the_drafter_is_off_are_probed_together_and_seldom() -> None:
    num_rows = 16
    widths = make_widths(*[40] * num_rows, drafter=TREE)
    slots = np.arange(num_rows, dtype=np.int32)
    for _ in range(300):
        widths.observe_drafter(slots, np.full_like(slots, 12), np.zeros_like(slots))
    choices = range(PROBE_PERIOD * PROBE_SHARE)
    cheap = CostCurve([1, 2, 4], [10, 20, 30])
    chosen = np.array([choose_drafter(widths, num_rows, cheap, choice) for choice in choices])
    assert set(chosen.ravel().tolist()) == {0, 4}
    assert (chosen > 0).sum(axis=0).tolist() == [1] * num_rows
    assert (chosen.any(axis=1)).sum() == PROBE_SHARE
    # The more the drafter takes, the less often: no more than a hundredth of the time.
    costs = [
        float(CURVE.cost(num_rows + row.sum()) + SLOW.cost(1) * bool(row.any()))
        for row in (
            np.array(choose_drafter(widths, num_rows, SLOW, choice)) for choice in range(1000)
        )
    ]
    assert sum(costs) <= 1000 * float(CURVE.cost(num_rows)) * 1.011
