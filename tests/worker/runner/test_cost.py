"""What passes and drafts are timed at start is what they take, whatever disturbs them."""

from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.drafters.drafter import DraftRows, Proposal
from optimist_worker.runner.cost import (
    MeasuredCosts,
    fit_curve,
    measure_cost,
    measure_costs,
    measure_drafter,
)
from optimist_worker.runner.runner import Runner
from tests.worker.drafters.drafting import SHAPES, drafting_runner
from tests.worker.step import MAX_MODEL_LEN, generate


@given(st.dictionaries(st.integers(1, 4096), st.floats(1e-6, 10)))
def test_a_disturbed_time_is_bounded_by_those_of_other_passes(times: dict[int, float]) -> None:
    """By that of a larger pass, and by that of a smaller one in proportion."""
    curve = fit_curve(times)
    assert list(curve) == sorted(times)
    for size, fitted in curve.items():
        assert fitted <= round(times[size] * 1e6) or fitted == 1
        # No lower than some time allows.
        assert any(fitted >= int(times[one] * max(1.0, size / one) * 1e6) for one in times)
    for (size, fitted), (larger, cost) in pairwise(curve.items()):
        assert fitted <= cost <= fitted * larger / size + 1 + larger / size


def test_nothing_is_measured_in_no_time(llama: Runner) -> None:
    ticks = count()
    assert measure_cost(llama, 0.0, lambda: float(next(ticks))) == {}
    assert measure_costs(llama, 0.0) == MeasuredCosts({}, {})


def test_measuring_leaves_no_trace(llama: Runner) -> None:
    truth = generate(llama, [5, 6, 7], 20)
    llama.release_all()
    costs = measure_costs(llama, 60.0)
    # There is no drafter to be timed.
    assert (max(costs.passes), costs.drafter) == (MAX_MODEL_LEN - 1, {})
    assert generate(llama, [5, 6, 7], 20) == truth


def test_every_depth_of_the_drafter_is_timed(llama_path: Path) -> None:
    runner = drafting_runner(llama_path, "draft_model", SHAPES["fixed"])
    costs = measure_costs(runner, 60.0)
    times = list(costs.drafter.values())
    assert list(costs.drafter) == [1, 2, 3]
    assert times == sorted(times)
    assert times[0] > 0
    assert measure_drafter(runner, costs.passes, 0.0) == {}
    assert runner.engine.expected_draft_ns(100) == 1000 * times[-1]
    assert runner.engine.expected_draft_ns(1) == 1000 * times[0]
    assert runner.engine.expected_draft_ns(0) == 0


def test_a_drafter_that_fails_has_no_costs(
    llama_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = drafting_runner(llama_path, "draft_model", SHAPES["chain"])

    def fail(rows: DraftRows) -> Proposal:
        raise RuntimeError("not enough memory")

    drafter = runner.engine.drafter
    assert drafter is not None
    monkeypatch.setattr(drafter.guarded, "propose", fail)
    assert measure_drafter(runner, {1: 1}, 60.0) == {}
    assert "drafts of depth 1 cannot be timed: the drafter has failed" in caplog.text
