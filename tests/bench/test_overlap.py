"""`optimist bench overlap`: its keys and what it runs; and the report on made-up figures."""

import json

import pytest

from optimist_bench.overlap import command as overlap
from optimist_bench.overlap.command import describe, summarise
from optimist_bench.overlap.run import Configuration, Figures
from optimist_common.errors import SetupError


def figures(
    num_steps: int = 100, num_hits: int = 0, num_rows: int = 0, num_recomputed_rows: int = 0
) -> Figures:
    return Figures(1.0, 0.25, num_steps, num_steps, num_hits, num_rows, num_recomputed_rows)


def test_pairs_are_compared_in_the_order_in_which_they_ran() -> None:
    on, off = Configuration(800, 2), Configuration(800, 2, optimistic=False)
    runs = {on: [figures(90), figures(200)], off: [figures(100), figures(200)]}
    report = summarise(runs)
    assert report["throughput_ratio"] == 0.95
    assert report["num_pairs"] == 2
    assert not report["never_slower"]
    assert report["configurations"][on.name]["throughput_ratio"] == 0.95
    assert report["configurations"][off.name]["throughput_ratio"] is None
    assert report["configurations"][off.name]["steps_per_second"] == 150
    assert summarise({on: [figures(99)], off: [figures(100)]})["never_slower"]


def test_shares_are_of_steady_decode_and_of_runs_with_commands() -> None:
    runs = {
        Configuration(800, 1): [figures(num_hits=100)],
        Configuration(800, 2): [figures(num_hits=98)],
        Configuration(800, 2, stalls="worker"): [figures()],
        Configuration(800, 2, windows="each step"): [figures(num_hits=50)],
        Configuration(800, 2, commands=True): [figures(num_rows=1000, num_recomputed_rows=10)],
    }
    report = summarise(runs)
    assert report["steady_hit_rate"] == 0.99
    assert report["steady_hit_rate_with_proposer"] == 0.5
    assert report["recomputed_rows"] == 0.01
    assert all(one["idle_share"] == 0.25 for one in report["configurations"].values())
    assert "99.0%" in describe(report)


def test_a_small_run_has_all_keys(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seconds", "0.1", "--step-us", "400", "--depths", "2", "--json"]
    assert overlap.main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"steady_hit_rate", "recomputed_rows", "never_slower"} <= set(report)
    runs = report["configurations"].values()
    assert len(runs) == 13
    assert all(0 <= one["idle_share"] <= 1 for one in runs)
    assert all(one["steps_per_second"] > 0 for one in runs)
    assert all(one["hit_rate"] == 0 for one in runs if not one["optimistic"])
    assert report["steady_hit_rate"] > 0
    assert report["recomputed_rows"] > 0


@pytest.mark.parametrize(("flag", "value"), [("--step-us", "fast"), ("--depths", "0")])
def test_numbers_must_be_numbers(flag: str, value: str) -> None:
    with pytest.raises(SetupError, match=flag):
        overlap.main([flag, value])
