"""`optimist bench scheduler` and `overlap`: their keys, loads and figures. No times."""

import pytest

from optimist_bench.__main__ import main
from tests.bench.conftest import ReportOf


def test_the_load_is_what_was_asked_for(
    report_of: ReportOf, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("scheduler", "--requests", "8", "--draft-tokens", "3", "--depth", "3")
    report = report_of(*words, "--steps", "400")
    assert (report["requests"], report["depth"], report["steps"]) == (8, 3, 400)
    assert 7 < report["rows_per_step"] <= 8
    assert 2.5 < report["drafts_per_row"] <= 3
    assert 1 + 0.8 * 3 / 2 < report["tokens_per_row"] < 1 + 1.2 * 3 / 2
    assert report["replaced_per_step"] > 0
    assert report["windows_per_step"] > 0
    assert report["preemptions"] == 0
    # Prompts share cached blocks.
    assert 0.4 < report["prefix_hits"] <= 0.5
    names = ["us_per_request_step", "cpu_us_per_request_step", "us_per_step"]
    names += ["codec_us", "window_us", "add_us"]
    for times in (*(report[name] for name in names), *report["by_phase"].values()):
        assert 0 < times["min"] <= times["p50"] <= times["p99"]
        assert times["mean"] > 0
    assert set(report["by_phase"]) == {"prepare", "schedule", "settle"}
    # Without drafts a row is a token; one request at a time leaves steps with nothing to settle.
    alone = report_of("scheduler", "--requests", "1", "--draft-tokens", "0", "--steps", "400")
    assert (alone["drafts_per_row"], alone["tokens_per_row"]) == (0, 1)
    assert alone["by_phase"]["settle"]["min"] == 0
    assert alone["us_per_request_step"]["min"] > 0
    assert main(["scheduler", "--requests", "2", "--steps", "10"]) == 0
    assert "per request and step" in capsys.readouterr().out.splitlines()[1]


def test_a_small_run_has_all_keys(report_of: ReportOf) -> None:
    report = report_of("overlap", "--seconds", "0.1", "--step-us", "400", "--depths", "2")
    assert {"steady_hit_rate", "recomputed_rows", "never_slower"} <= set(report)
    runs = report["configurations"].values()
    assert len(runs) == 11
    assert all(0 <= one["idle_share"] <= 1 for one in runs)
    assert all(one["steps_per_second"] > 0 for one in runs)
    assert all(one["hit_rate"] == 0 for one in runs if not one["optimistic"])
    assert report["steady_hit_rate"] > 0
    assert report["recomputed_rows"] > 0
