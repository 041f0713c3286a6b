"""The benchmark of windows in virtual time."""

from typing import Any

import pytest

from optimist_bench.harness.virtual.settings import VirtualSettings
from optimist_bench.harness.virtual.timeline import Cores, Service, Timeline
from tests.bench.conftest import ReportOf

LOAD = ("--requests", "6", "--concurrency", "3", "--pass-ms", "8", "--algorithm", "line")
FREE = tuple(
    word
    for name in VirtualSettings.model_fields
    if name.endswith("_us")
    for word in (f"--{name.replace('_', '-')}", "0")
)


def run(report_of: ReportOf, *words: str) -> Any:
    report = report_of("windows", *words)
    assert report["all_right"]
    return report


def test_a_run_in_virtual_time_is_the_same_each_time(report_of: ReportOf) -> None:
    # A row without a window loses much: steps wait also where the worker is idle meanwhile.
    words = (*LOAD, "--no-looks-up", "--cores", "2")
    first = run(report_of, *words)
    assert first == run(report_of, *words)
    assert first["tokens_per_pass"] > 3
    assert first["output_tokens"] > first["passes"] >= first["steps"] / 3 > 0
    assert 0 < first["steps_idle_share"] <= first["steps_waited_share"] <= 1
    assert 0 < first["wait_ms"]["p50"] <= first["wait_ms"]["p99"] <= 10.1
    assert first["windows"] >= 6
    assert first["proposer_us_per_window"] > 0
    assert first["scheduler_us_per_row"] > 0


def test_services_that_cost_nothing_leave_no_pass_waiting(report_of: ReportOf) -> None:
    words = (*LOAD, *FREE, "--no-looks-up")
    report = run(report_of, *words, "--token-us", "0", "--depth", "2")
    assert report["steps_waited"] > 0
    assert report["steps_idle_share"] == report["wait_time_share"] == 0
    assert report["seconds"] == pytest.approx(0.008 * report["steps"])


def test_more_proposers_are_not_slower_where_they_are_the_bottleneck(report_of: ReportOf) -> None:
    slow = (*LOAD, *FREE, "--no-looks-up", "--observation-us", "2000")
    slow = (*slow, "--requests", "8", "--concurrency", "8")
    one, two = (run(report_of, *slow, "--replicas", str(number)) for number in (1, 2))
    assert one["wait_time_share"] > 0.2
    assert one["tokens_per_second"] < two["tokens_per_second"]


def test_jobs_of_a_service_run_in_turn_and_wait_for_a_core() -> None:
    timeline, cores = Timeline(), Cores(1)
    first, second = Service(timeline, cores), Service(timeline, cores)
    log: list[tuple[str, float]] = []

    def job(service: Service, name: str) -> None:
        log.append((f"{name} begins", timeline.now))
        service.spend(10)
        assert service.time == timeline.now + 10
        service.send(1, lambda: log.append((f"{name} arrives", timeline.now)))

    first.ask(lambda: job(first, "a"))
    first.ask(lambda: job(first, "b"))
    second.ask(lambda: job(second, "c"))
    timeline.run()
    begins = [each for each in log if each[0].endswith("begins")]
    assert begins == [("a begins", 0), ("c begins", 10), ("b begins", 20)]
    assert ("a arrives", 11) in log
    assert (first.busy_us, second.busy_us) == (20, 10)
