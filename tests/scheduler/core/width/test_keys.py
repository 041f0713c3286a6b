"""What keys in memory add to passes: learnt apart from their tokens, and charged to long rows."""

import numpy as np
import pytest

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.base.values import Int32Array, SchedulerStats
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.width.goodput import NO_KEY_COSTS, KeyCosts, Thresholds
from tests.scheduler.situation import config, ints

# 1 ms, and 10 us more per token.
CURVE = CostCurve([1, 64], [1000, 1630])
KEYS = KeyCosts(row_ns=2000.0, token_ns=50.0)


def test_a_curve_has_the_keys_of_its_rows() -> None:
    lengths, sizes = ints(100, 300), np.array([2, 10, 50])
    expected = CURVE.cost(sizes) + 2000 * 400 + 50 * 200 * (sizes - 2)
    np.testing.assert_allclose(KEYS.curve(CURVE, lengths).cost(sizes), expected)
    # As much as is taken off what such passes took, where rows are as long as each other.
    shares = ints(5, 5)
    computed = ints(202, 202)
    keys = KEYS.curve(CURVE, computed - 2).cost(10) - CURVE.cost(10)
    assert KEYS.time(computed, shares) == pytest.approx(float(keys), rel=0.01)


def test_without_keys_nothing_changes() -> None:
    assert NO_KEY_COSTS.curve(CURVE, ints(100)) is CURVE
    assert KEYS.curve(CURVE, ints()) is CURVE


def test_long_rows_draft_less_than_short_ones() -> None:
    """Drafts that are as likely as each other pay after few tokens, and not after many."""
    rate, lengths = 2e-6, ints(100, 2000, 5000)
    mean = float(lengths.mean())
    thresholds = Thresholds(KEYS.curve(CURVE, lengths), KEYS.token_ns, mean)
    hazards = np.arange(1, 21, dtype=np.float32) / 10

    def count(depths: object) -> Int32Array:
        limits = np.broadcast_to(np.asarray(depths, np.float32), 3)
        return np.array([(hazards <= limit).sum() for limit in limits], np.int32)

    worth = thresholds.choose(rate, 3, ints(20, 20, 20), count, lengths)
    chances = np.exp(-hazards.astype(np.float64))
    for length, number in zip(lengths.tolist(), worth.tolist(), strict=True):
        cost = rate * (10_000 + KEYS.token_ns * length)
        assert number == (chances > cost).sum(), length
    assert len(set(worth.tolist())) == 3


def test_passes_after_many_tokens_are_no_dearer_in_the_curve() -> None:
    state = SchedulerState(
        config(max_model_len=4096, num_blocks=512),
        SchedulerStats(),
        [(1, 1000), (64, 1630)],
        (),
        KEYS,
    )
    slots, tokens = np.array([0, 1]), ints(1, 1)
    state.table.num_computed_tokens[:2] = 3000
    state.table.num_tokens[:2] = 3000
    took = round(float(CURVE.cost(2)) + 2 * 3000 * KEYS.row_ns)
    for _ in range(50):
        state.learn_costs(slots, tokens, 2, took)
    assert float(state.costs_for(slots[:0]).cost(2)) == pytest.approx(
        float(CURVE.cost(2)), rel=0.01
    )
    assert float(state.costs_for(slots).cost(2)) == pytest.approx(took, rel=0.01)
    # A time that is less than what was timed for keys alone is no time of nothing.
    state.learn_costs(slots, tokens, 2, 1000)
    assert float(state.costs_for(slots[:0]).cost(2)) > 0
