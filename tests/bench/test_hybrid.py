"""`optimist bench hybrid`: what ways to take drafts back keep, and that drafts come true."""

import pytest

from optimist_bench.hybrid.command import main
from tests.bench.conftest import ReportOf


def test_replay_keeps_least_and_drafts_bring_as_much_as_with_attention(
    report_of: ReportOf, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--drafts", "1,8", "--rounds", "1", "--tokens", "60", "--wrong-every", "9")
    report = report_of("hybrid", *flags)
    assert report["chosen"] == "replay"
    kept = {
        (row["layers"], row["way"]): (row["kept_mib"], row["state_mib"])
        for row in report["ways"]
        if row["num_drafts"] == 8
    }
    for layers in ("LFM2-1.2B", "Qwen3.5-9B"):
        (least, state), (some, _), (most, _) = (
            kept[layers, way] for way in ("replay", "checkpoints", "state per draft")
        )
        assert least < some < most
        assert most == pytest.approx(8 * state)
    assert all(row["pass_ms"] > 0 and row["settle_ms"] > 0 for row in report["ways"])
    per_pass = {
        (row["model"], row["num_drafts"]): row["tokens_per_pass"] for row in report["copies"]
    }
    assert per_pass["llama", 0] == 1
    assert per_pass["llama", 8] > 4
    for number in (0, 1, 8):
        for family in ("lfm2", "qwen3_5"):
            assert per_pass[family, number] == per_pass["llama", number]
    assert main(["--drafts", "1", "--rounds", "1", "--tokens", "16"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "chosen: replay"
