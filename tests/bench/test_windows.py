"""The benchmark of waits for windows: its figures, and a small run of real services."""

import json

import pytest

from optimist_bench.windows import _find_quantile, main


def test_quantiles_are_interpolated_in_their_bucket() -> None:
    buckets = [(0.001, 50.0), (0.002, 90.0), (0.004, 100.0), (float("inf"), 100.0)]
    assert _find_quantile(buckets, 0.25) == pytest.approx(0.5)
    assert _find_quantile(buckets, 0.5) == pytest.approx(1)
    assert _find_quantile(buckets, 0.95) == pytest.approx(3)
    assert _find_quantile([(0.001, 0.0), (float("inf"), 4.0)], 0.5) == pytest.approx(1.5)
    assert _find_quantile([], 0.5) == 0


def test_a_small_run_says_what_the_texts_say(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--requests", "6", "--concurrency", "3", "--pass-ms", "2", "--replicas", "2"]
    assert main([*arguments, "--algorithm", "line", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["all_right"]
    assert report["tokens_per_pass"] > 3
    assert report["output_tokens"] > report["passes"] >= report["steps"] / 3 > 0
    assert 0 <= report["steps_waited"] <= report["steps"]
    assert report["share"] == pytest.approx(report["steps_waited"] / report["steps"], abs=1e-3)
    assert report["accepted_prediction_tokens"] > report["rejected_prediction_tokens"]
