"""`optimist bench scheduler`: its keys, and that the load is the one it says. No times."""

import json

import pytest

from optimist_bench.scheduler import command as scheduler
from optimist_bench.scheduler.command import SchedulerBenchSettings, measure


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_load_is_what_was_asked_for(depth: int) -> None:
    settings = SchedulerBenchSettings(requests=8, draft_tokens=3, depth=depth, steps=400)
    report = measure(settings)
    assert report["requests"] == 8
    assert report["depth"] == depth
    assert report["steps"] == 400
    assert 7 < report["rows_per_step"] <= 8
    assert 2.5 < report["drafts_per_row"] <= 3
    assert 1 + 0.8 * 3 / 2 < report["tokens_per_row"] < 1 + 1.2 * 3 / 2
    assert report["replaced_per_step"] > 0
    assert report["windows_per_step"] > 0
    assert report["preemptions"] == 0
    for times in (
        report["us_per_request_step"],
        report["us_per_step"],
        report["codec_us"],
        report["window_us"],
        report["add_us"],
        *report["by_phase"].values(),
    ):
        assert 0 < times["min"] <= times["p50"]
    assert set(report["by_phase"]) == {"prepare", "schedule", "settle"}


def test_prompts_share_cached_blocks() -> None:
    report = measure(SchedulerBenchSettings(requests=8, draft_tokens=3, steps=400))
    assert 0.4 < report["prefix_hits"] <= 0.5


def test_without_drafts_a_row_is_a_token() -> None:
    report = measure(SchedulerBenchSettings(requests=2, draft_tokens=0, steps=50))
    assert report["drafts_per_row"] == 0
    assert report["tokens_per_row"] == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_prints_a_table_or_json_alone(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--json"] if as_json else []
    assert scheduler.main(["--requests", "2", "--steps", "10", *flags]) == 0
    printed = capsys.readouterr().out
    if as_json:
        assert json.loads(printed)["requests"] == 2
    else:
        assert "per request and step" in printed.splitlines()[1]
