"""`optimist bench quantization`: divergence from float32 on a small model."""

import json
from pathlib import Path

import pytest

from optimist_bench import quantization
from optimist_common.errors import SetupError
from tests.checkpoints import add_tokenizer, tiny_checkpoint


def test_rounding_to_fewer_bits_diverges_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = add_tokenizer(tiny_checkpoint(tmp_path, "llama"))
    assert quantization.main(["--model", str(path), "--tokens", "16", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
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


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"--model: .*the prompts need a tokenizer"):
        quantization.main(["--model", str(tmp_path)])
