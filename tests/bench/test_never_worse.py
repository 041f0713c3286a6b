"""The benchmark that finds loads that drafts make slower."""

from typing import Any

import pytest

from optimist_bench.never_worse import grid
from optimist_bench.never_worse.report import LEAST_RATIO
from tests.bench.conftest import ReportOf

GRID = ("never-worse", "--model=", "--processes", "1", "--curves", "cpu")


@pytest.fixture(autouse=True)
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a phase have fewer requests; what computes the grid is forked."""
    for name in ("_COLD_REQUESTS", "_WARM_REQUESTS"):
        monkeypatch.setattr(grid, name, 2)


def find_ratios(report: Any, **coordinates: object) -> list[float]:
    return [
        cell["ratio"]
        for cell in report["cells"]
        if all(cell[name] == value for name, value in coordinates.items())
    ]


def test_a_prediction_pays_and_drafts_that_are_always_wrong_are_found(report_of: ReportOf) -> None:
    words = (*GRID, "--workloads", "holds,never", "--rows", "1", "--scenarios", "none")
    report = report_of(*words, "--draft-width", "fixed")
    assert min(find_ratios(report, workload="never")) < LEAST_RATIO
    assert len(report["cells"]) == 4
    assert {cell["state"] for cell in report["cells"]} == {"cold", "warm"}
    assert report["worst"]["workload"] == "never"
    assert report["virtual"]["cells"] == 4
    assert report["virtual"]["below"] >= 1
    assert report["virtual"]["worst"] == report["worst"]["ratio"]
    goodput = report_of(*words)
    assert min(find_ratios(goodput, workload="holds")) > 1.3
    assert max(find_ratios(report, workload="never")) < min(find_ratios(goodput, workload="never"))


def test_a_disturbed_run_brings_all_texts(report_of: ReportOf) -> None:
    scenarios = ("stalls", "restart")
    report = report_of(
        *(*GRID, "--workloads", "partly", "--scenarios", ",".join(scenarios)),
    )
    assert [cell["scenario"] for cell in report["cells"]] == [*("stalls", "stalls", "restart")]
    assert all(0.5 < cell["ratio"] < 5 for cell in report["cells"])
