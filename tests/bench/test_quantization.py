"""`optimist bench quantization`: fewer bits diverge more."""

from pathlib import Path

import pytest

from optimist_bench import quantization
from tests.bench.conftest import ReportOf
from tests.checkpoints import add_tokenizer, tiny_checkpoint


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
