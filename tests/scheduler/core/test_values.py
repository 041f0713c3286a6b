"""How much to draft by what windows say of their chances, and how far that is believed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.width.acceptance import Acceptance, Calibration
from optimist_scheduler.core.width.goodput import choose_goodput
from optimist_scheduler.core.windows.window import LEAST_HAZARD, PRIOR_HAZARD, WINDOW_PRIOR
from tests.scheduler.situation import Situation, ints, make_window

DEAR = [(2**power, 1000 + 100 * 2**power) for power in range(9)]
"""A pass of 1 ms, and 0.1 ms for each token."""


def floats(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(values, np.float32)


def valued() -> Situation:
    situation = Situation(
        DEAR,
        draft_width="goodput",
        num_speculative_tokens=16,
        max_num_batched_tokens=64,
        num_blocks=200,
        max_model_len=200,
    )
    situation.step_ns = lambda num_tokens: 1000 * (1000 + 100 * num_tokens)
    return situation


def test_drafts_end_where_they_are_not_worth_their_cost() -> None:
    situation = valued()
    truth = situation.add(9, [1, 2], 60)
    situation.drain()
    situation.add(0, [1, 2], 60, predicted_token_ids=truth)
    situation.step()
    # Six that are nearly certain, and then hardly any chance.
    chances = [0.99**place for place in range(1, 7)] + [0.02] * 20
    situation.scheduler.set_window("r0", make_window(1, 1, truth[1:27], chances))
    assert situation.send().num_draft_tokens.tolist() == [6]
    situation.answer()
    # What is left behind seven tokens has a chance of its own, once it is what comes.
    assert situation.send().num_draft_tokens.tolist() == [16]
    situation.answer()
    situation.drain()


@given(
    st.lists(
        st.lists(st.floats(0.125, 6, width=32), min_size=1, max_size=5), min_size=1, max_size=4
    ),
    st.integers(1, 800),
)
def test_no_other_thresholds_bring_more(rows: list[list[float]], us_per_token: int) -> None:
    most = 5
    hazards = np.full((len(rows), most), np.inf, np.float32)
    for row, steps in enumerate(rows):
        hazards[row, : len(steps)] = np.cumsum(steps)
    curve = CostCurve(*zip(*[(2**i, 1000 + us_per_token * 2**i) for i in range(8)], strict=True))
    num_rows = len(rows)
    limits = np.full(num_rows, most, np.int32)
    choice = choose_goodput(
        np.full(num_rows, 0.5), limits, np.ones(num_rows, np.bool_), num_rows, curve, None, hazards
    )
    order = np.sort(hazards[np.isfinite(hazards)])
    tokens = num_rows + np.concatenate([[0], np.cumsum(np.exp(-order.astype(np.float64)))])
    goodputs = tokens / curve.cost(num_rows + np.arange(len(tokens)))
    chosen = int(choice.widths.sum())
    assert goodputs[chosen] >= goodputs.max() / 1.0201
    if chosen:
        # Between two choices, drafts are those up to this depth.
        assert ((hazards <= choice.depths[:, None]).sum(axis=1) >= choice.widths).all()
    assert (choice.depths > 0).all() == (chosen > 0)


def observe(
    calibration: Calibration, agreed: int, examined: int, hazard: float, times: int = 1
) -> None:
    for _ in range(times):
        estimated = floats(hazard * examined)
        calibration.observe(ints(0), ints(agreed), ints(examined), estimated, np.ones(1, np.bool_))


@given(st.lists(st.tuples(st.integers(0, 64), st.booleans()), max_size=60))
def test_windows_without_values_are_believed_by_what_they_did(
    passes: list[tuple[int, bool]],
) -> None:
    calibration, acceptance = Calibration(1), Acceptance(1, WINDOW_PRIOR)
    for agreed, is_rejected in passes:
        examined = ints(agreed + is_rejected)
        acceptance.observe(ints(0), ints(agreed), examined)
        estimated = examined * np.float32(PRIOR_HAZARD)
        calibration.observe(ints(0), ints(agreed), examined, estimated, np.zeros(1, np.bool_))
    rate = acceptance.rate(ints(0))
    assert calibration.rate(ints(0)) == pytest.approx(rate, rel=1e-5)
    hazard = max(-float(np.log(rate[0])), 1 / 1024)
    assert calibration.scale(ints(0))[0] * PRIOR_HAZARD == pytest.approx(hazard, rel=1e-3)
    assert calibration.common_scale == pytest.approx(1)


def test_a_window_that_promises_too_much_is_soon_doubted() -> None:
    calibration = Calibration(2)
    observe(calibration, 0, 1, LEAST_HAZARD, times=16)
    assert np.exp(-calibration.scale(ints(0))[0] * LEAST_HAZARD) < 0.7
    observe(calibration, 0, 1, LEAST_HAZARD, times=200)
    assert np.exp(-calibration.scale(ints(0))[0] * LEAST_HAZARD) < 0.05
    # Others do not suffer for it, but those that come next are believed less.
    assert calibration.scale(ints(1))[0] == pytest.approx(1, rel=1e-4)
    calibration.reset(1)
    assert calibration.scale(ints(1))[0] > 10
