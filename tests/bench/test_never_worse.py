"""The benchmark that finds loads that drafts make slower."""

import json
from pathlib import Path
from typing import Any

import pytest

from optimist_bench.never_worse import grid
from optimist_bench.never_worse.report import LEAST_RATIO, describe, make_report
from optimist_bench.never_worse.texts import WORKLOADS, load_texts, make_workload, mix_lines
from optimist_common.errors import SetupError
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


def test_a_workload_has_requests_of_its_kind_with_what_is_attached() -> None:
    rewrites, questions, files = (
        [f"{name} {number}" for number in range(6)] for name in ("rewrite", "question", "file")
    )
    workloads = {name: make_workload(name, rewrites, questions, files) for name in WORKLOADS}
    assert workloads["holds"] == list(zip(rewrites, files, strict=True))
    assert workloads["never"] == list(zip(questions, files, strict=True))
    assert workloads["nothing"] == [(each, "") for each in rewrites]
    assert workloads["chat"] == [(each, "") for each in questions]
    assert [each for each, _ in workloads["partly"]] == rewrites
    assert workloads["mixed"] == [
        workloads[name][number] for number, name in enumerate(WORKLOADS[:-1])
    ]


def test_half_of_the_lines_of_a_prediction_that_holds_partly_are_right() -> None:
    lines = [f"line {number}\n" for number in range(16)]
    mixed = mix_lines("".join(lines), "other\n" * 16).splitlines(keepends=True)
    assert mixed[:4] == lines[:4]
    assert mixed[8:12] == lines[8:12]
    assert mixed[4:8] == mixed[12:] == ["other\n"] * 4


def test_a_file_without_texts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "texts.json"
    path.write_text(json.dumps({"tokenizer": "tokenizer.json"}))
    with pytest.raises(SetupError, match="has no recorded texts"):
        load_texts(str(path))


def test_the_table_shows_what_is_worst() -> None:
    names = ("workload", "rows", "arrivals", "curve", "scenario", "state")
    cells = [
        dict(zip(names, ("never", 1, "busy", "cpu", "none", state), strict=True))
        | {"ratio": ratio, "is_virtual": True}
        for state, ratio in (("cold", 0.9), ("warm", 1.0))
    ]
    table = describe(make_report(cells, 1.0))
    assert "| worst, median | cpu |\n|---|---|\n| never | 0.900, 0.95 |\n" in table
    assert "Worst: 0.900 (workload never, rows 1, arrivals busy, curve cpu" in table
    assert f"Below {LEAST_RATIO}: 1 of 2." in table
