"""What grows or slows down in a soak is reported, and warming up is not."""

import pytest

from tests.chaos.load.case import Case
from tests.chaos.load.client import Ending, Outcome
from tests.chaos.soak import Sample, SoakSettings, find_trends, split_into_windows

CASE = Case("plain-1", "/v1/completions", {"stream": True})
SETTINGS = SoakSettings(seconds=40.0, seed=1, window_seconds=10.0)


def outcomes(ttft_at: dict[float, float]) -> list[Outcome]:
    """Answers that began at times, with a first token so much later and another 20 ms after it."""
    return [
        Outcome(CASE, began, began + 1, Ending.ANSWERED, times=[began + ttft, began + ttft + 0.02])
        for began, ttft in ttft_at.items()
    ]


def samples(memory: list[float]) -> list[Sample]:
    return [
        Sample(4.0 * number, {"worker-1": {"memory_mib": value, "descriptors": 10}})
        for number, value in enumerate(memory)
    ]


def test_figures_are_of_the_requests_that_began_in_a_window() -> None:
    asked = outcomes({1.0: 0.1, 2.0: 0.1, 3.0: 0.1, 11.0: 0.3, 12.0: 0.3, 25.0: 0.2})
    asked[-1].ending = Ending.LATE
    windows = split_into_windows(SETTINGS, 0.0, asked, samples([100.0] * 10))
    assert [one["requests"] for one in windows] == [3, 2, 1, 0]
    assert [one["errors"] for one in windows] == [0, 0, 1, 0]
    assert windows[0]["ttft_ms_p50"] == pytest.approx(100)
    assert windows[1]["ttft_ms_p50"] == pytest.approx(300)
    assert windows[1]["itl_ms_p50"] == pytest.approx(20)
    assert windows[3]["ttft_ms_p50"] is None


def test_memory_that_grows_is_reported_and_warming_up_is_not() -> None:
    warming = [50.0, 90.0, *[100.0] * 8]
    flat = find_trends([], samples(warming))
    assert flat["worker-1 memory_mib"]["is_flat"]
    growing = find_trends([], samples([100.0 + 2 * number for number in range(10)]))
    assert not growing["worker-1 memory_mib"]["is_flat"]
    assert growing["worker-1 descriptors"]["is_flat"]
    shrinking = find_trends([], samples([100.0 - 2 * number for number in range(10)]))
    assert shrinking["worker-1 memory_mib"]["is_flat"]


def test_latency_that_grows_is_reported() -> None:
    growing = {10.0 * number + 1: 0.1 + 0.05 * number for number in range(4)}
    asked = outcomes(growing | {began + 1: seconds for began, seconds in growing.items()})
    windows = split_into_windows(SETTINGS, 0.0, asked, [])
    trends = find_trends(windows, samples([1.0, 1.0, 1.0]))
    assert not trends["ttft_ms_p50"]["is_flat"]
    assert trends["itl_ms_p50"]["is_flat"]
