"""How much rows draft, of windows and with the drafter: what is learnt, chosen and probed."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from optimist_aligner.cost import CostCurve
from optimist_common.drafts import DraftSource
from optimist_scheduler.core.base.values import Float32Array, Int32Array
from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.core.width.costs import PassCosts, Timings
from optimist_scheduler.core.width.widths import PROBE_PERIOD, PROBE_SHARE, DraftWidths
from optimist_scheduler.core.windows.window import PRIOR_HAZARD
from tests.scheduler.situation import ints

TREE = Drafter(DraftSource.EAGLE, 12, 3)
# 1 ms, and 1 ms more per 64 tokens.
TIMED = [1, 64, 1024], [1016, 2000, 17000]
CURVE = CostCurve(*TIMED)
COSTS = PassCosts(Timings(*TIMED))
FAST = PassCosts(Timings(*TIMED, drafter_us=[50, 100, 150, 200]))
SLOW = PassCosts(Timings(*TIMED, drafter_us=[2000, 4000, 6000, 8000]))
NO_PROBE = 1
"""A choice in which none of the first slots is probed."""


def make_widths(*limits: int, drafter: Drafter | None = None) -> DraftWidths:
    widths = DraftWidths("goodput", len(limits), drafter)
    for slot, limit in enumerate(limits):
        widths.admit(slot, limit)
    return widths


def choose(
    widths: DraftWidths, has_draft: Sequence[bool], choice: int = NO_PROBE, costs: PassCosts = COSTS
) -> list[int]:
    """Returns what rows get of windows without values, which only some have now."""
    slots, drafting = np.arange(len(has_draft), dtype=np.int32), np.array(has_draft, np.bool_)
    widths.choose(slots, drafting, len(slots), costs, ints(), choice)
    most, firsts = widths.limits[slots], np.full(len(slots), PRIOR_HAZARD, np.float32)

    def count(depths: Float32Array) -> Int32Array:
        counts: Int32Array = np.minimum(most, depths / PRIOR_HAZARD).astype(np.int32)
        return counts

    chosen = widths.choose_paying(slots, len(slots), most, count, np.ones_like(most), firsts)
    return [int(width) for width in chosen]


def choose_drafter(
    widths: DraftWidths, num_rows: int, costs: PassCosts = FAST, choice: int = NO_PROBE
) -> list[int]:
    """Returns what rows without windows get of the drafter."""
    slots, nobody = np.arange(num_rows, dtype=np.int32), np.zeros(num_rows, np.bool_)
    chosen = widths.choose(slots, nobody, num_rows, costs, ints(), choice)
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


def count_within(hazards: Float32Array, depths: Float32Array) -> Int32Array:
    return ints(int((hazards <= depths[0]).sum()))


def test_what_enters_a_window_is_learnt_apart_from_what_goes_on_in_it() -> None:
    widths, few = make_widths(64), np.full(1, 1 / 64, np.float32)
    for _ in range(80):
        # A token of which the window is not sure is always wrong, others are right.
        unsure = np.ones(1, np.float32)
        widths.windows.observe(ints(0), ints(0), ints(1), unsure, unsure)
        widths.windows.observe(ints(0), ints(4), ints(4), 4 * few, few)
    widths.choose(ints(0), np.ones(1, np.bool_), 1, COSTS, ints(), NO_PROBE)
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


# The worker's drafter.


def test_rows_for_which_the_drafter_is_off_are_probed_together_and_seldom() -> None:
    num_rows = 16
    widths = make_widths(*[40] * num_rows, drafter=TREE)
    assert widths.drafter is not None
    slots = np.arange(num_rows, dtype=np.int32)
    for _ in range(300):
        widths.drafter.observe(slots, np.full_like(slots, 12), np.zeros_like(slots))
    choices = range(PROBE_PERIOD * PROBE_SHARE)
    cheap = PassCosts(Timings(*TIMED, drafter_us=[10, 20, 25, 30]))
    chosen = np.array([choose_drafter(widths, num_rows, cheap, choice) for choice in choices])
    assert set(chosen.ravel().tolist()) == {0, 4}
    assert (chosen > 0).sum(axis=0).tolist() == [1] * num_rows
    assert (chosen.any(axis=1)).sum() == PROBE_SHARE
    # The more the drafter takes, the less often: no more than a hundredth of the time.
    costs = [
        float(CURVE.cost(num_rows + row.sum()) + SLOW.drafter.cost(1) * bool(row.any()))
        for row in (
            np.array(choose_drafter(widths, num_rows, SLOW, choice)) for choice in range(1000)
        )
    ]
    assert sum(costs) <= 1000 * float(CURVE.cost(num_rows)) * 1.011
