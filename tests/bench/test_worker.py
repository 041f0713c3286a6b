"""`optimist bench pipeline` and `quantization`, with real workers and models of their own."""

from pathlib import Path

import pytest

from optimist_bench import pipeline, quantization
from tests.bench.conftest import ReportOf
from tests.checkpoints import add_tokenizer, tiny_checkpoint
from tests.stack import free_port


def passes(*spans: tuple[int, int]) -> list[dict[str, int]]:
    return [{"begin_ns": begin, "end_ns": end} for begin, end in spans]


def test_what_no_pass_covers_is_idle() -> None:
    first = passes((100, 140), (140, 180))
    last = passes((140, 180), (180, 200))
    found = pipeline.find_bubbles([first, last])
    assert found["idle_shares"] == [0.2, 0.4]
    assert found["bubble"] == 0.3


def test_a_short_run_reports_both_stages(report_of: ReportOf) -> None:
    options = ["--stages", "2", "--plans", "2", "--rows", "5", "--steps", "3", "--layers", "2"]
    report = report_of("pipeline", *options, "--hidden", "64", "--port", str(free_port()))
    (run,) = report["runs"]
    assert (run["num_stages"], run["plans_in_flight"], run["rows_per_plan"]) == (2, 2, 2)
    assert run["tokens_per_second"] > 0
    assert len(run["idle_shares"]) == 2
    assert all(0 <= share < 1 for share in run["idle_shares"])


def test_rounding_to_fewer_bits_diverges_more(
    tmp_path: Path, report_of: ReportOf, capsys: pytest.CaptureFixture[str]
) -> None:
    path = add_tokenizer(tiny_checkpoint(tmp_path, "llama"))
    report = report_of("quantization", "--model", str(path), "--tokens", "16")
    assert 4 <= report["num_tokens"] <= 64
    results = report["results"]
    for width in ("wide", "narrow"):
        divergences = [results[name][f"kl_{width}"] for name in ("none", "int8", "int4")]
        assert 0 < divergences[0] < divergences[1] < divergences[2]
        assert 0.5 < results["none"][f"agreement_{width}"] <= 1
    assert all(result["step_ms"] > 0 for result in results.values())
    assert quantization.main(["--model", str(path), "--tokens", "4", "--quantization", "int4"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "weights"
    assert row.split()[0] == "int4"
