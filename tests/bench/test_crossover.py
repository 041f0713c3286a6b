import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_bench.crossover.load import StepCosts
from optimist_bench.crossover.report import Point, describe, expect, summarise
from optimist_bench.crossover.virtual_time import Situation, Times, throughput_ratio
from tests.bench.conftest import ReportOf

FLAT = Situation(
    num_requests=2,
    acceptance=0.9,
    max_drafts=5,
    pass_us=lambda _: 1000.0,
    drafter_us=lambda drafts: 10.0 * drafts,
)


def _linear(start: float, slope: float, knee: int) -> Times:
    """Returns times that are flat up to a number of tokens and grow from there on."""
    return lambda tokens: start + slope * max(0, tokens - knee)


@settings(max_examples=12, deadline=None)
@given(
    st.builds(
        Situation,
        num_requests=st.sampled_from([1, 2, 4, 8]),
        acceptance=st.sampled_from([0.0, 0.3, 0.5, 0.7, 0.9, 1.0]),
        max_drafts=st.just(5),
        pass_us=st.builds(
            _linear,
            start=st.sampled_from([1.0, 301.0, 3001.0]),
            slope=st.sampled_from([1.0, 100.0, 400.0]),
            knee=st.sampled_from([0, 8, 64]),
        ),
        drafter_us=st.builds(
            _linear,
            start=st.just(0.0),
            slope=st.sampled_from([1.0, 100.0, 2000.0]),
            knee=st.just(0),
        ),
        plans_in_flight=st.sampled_from([1, 2]),
    )
)
def test_adaptive_widths_are_never_slower_than_no_speculation(situation: Situation) -> None:
    # What is known after some hundred steps: before, drafts are tried out.
    number = situation.num_requests
    ratio = throughput_ratio(situation, warm_up_tokens=160 * number, num_tokens=320 * number)
    assert ratio >= 0.98


def test_speculation_is_used_where_it_pays_and_would_be_slower_where_not() -> None:
    assert throughput_ratio(FLAT, warm_up_tokens=200, num_tokens=600) > 3
    # So the claim about adaptive widths says something.
    useless = replace(FLAT, acceptance=0.0, pass_us=lambda tokens: 200.0 * tokens)
    ratio = throughput_ratio(useless, warm_up_tokens=100, num_tokens=200, policy="fixed")
    assert ratio < 0.5


COSTS = StepCosts(num_tokens=(1, 2, 4, 8), pass_us=(1000, 1000, 1000, 4000), drafter_us=(100, 200))


# A drafter that was not timed so deep takes at least as long.
@pytest.mark.parametrize(("acceptance", "most", "tokens"), [(0.5, 2, 1 + 0.5 + 0.25), (1.0, 3, 4)])
def test_the_expected_speedup_is_that_of_the_best_number_of_drafts(
    acceptance: float, most: int, tokens: float
) -> None:
    expected = expect(COSTS, acceptance=acceptance, batch_size=1, max_drafts=most)
    assert expected.num_drafts == most
    assert expected.speedup == pytest.approx(tokens / 1.2)


def test_the_report_has_the_worst_point_the_noise_and_where_speculation_begins_to_pay() -> None:
    slow = Point(1, 0.0, (97.0, 98.0, 99.0), (100.0,) * 3, (1.01,), expect(COSTS, 0.0, 1, 2))
    fast = Point(1, 0.9, (200.0,) * 3, (100.0,) * 3, (0.99,), expect(COSTS, 0.9, 1, 2))
    report = summarise([slow, fast], {"pairs": 3})
    assert report["synthetic"]
    assert all(point["synthetic"] for point in report["points"])
    assert (report["never_below"], report["holds"]) == (0.98, True)
    assert report["noise"]["median"] == 1.0
    assert report["crossover"] == {"batch_1": {"measured_from": 0.9, "expected_from": 0.9}}
    assert [point["should_speculate"] for point in report["points"]] == [False, True]
    assert json.loads(json.dumps(report)) == report
    assert "never below 0.980" in describe(report)


def test_less_than_asked_for_is_reported() -> None:
    point = Point(1, 0.0, (90.0,) * 2, (100.0,) * 2, (), expect(COSTS, 0.0, 1, 2))
    report = summarise([point], {"pairs": 2})
    assert (report["never_below"], report["holds"], report["noise"]) == (0.9, False, None)
    assert "too few measurements" in describe(report)


@pytest.mark.slow
def test_the_real_worker_is_measured(report_of: ReportOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIMIST_WORKER_COST_SECONDS", "0.1")
    flags = ["--drafter", "quantised", "--rates", "0.9", "--batch-sizes", "2", "--pairs", "2"]
    report = report_of("crossover", *flags, "--slice-ms", "10", "--num-threads", "1")
    assert report["synthetic"]
    (point,) = report["points"]
    assert point["tokens_per_second"] > 0
    assert point["tokens_per_second_off"] > 0
