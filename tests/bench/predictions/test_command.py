"""`optimist bench predictions` reports on the pairs, methods and windows that were asked for."""

import json
from array import array
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from optimist_bench.__main__ import main
from optimist_bench.harness.pair import Pair
from optimist_bench.predictions import command
from optimist_bench.predictions.baselines import Baseline
from optimist_bench.predictions.baselines.exact import ExactFollower
from optimist_bench.predictions.cases import small_cases
from optimist_bench.predictions.command import METHODS
from optimist_bench.predictions.report import describe, summarise
from optimist_bench.predictions.simulator import Simulation
from optimist_common.errors import SetupError
from tests.proposer.text import write_tokenizer

BEFORE = "one\ntwo\nthree\nfour\nfive\nsix\n"
AFTER = "one\ntwo\nTHREE\nfour\nfive\nsix\n"


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer with a token per byte."""
    directory = tmp_path_factory.mktemp("tokenizer")
    return f"{write_tokenizer(directory, pre_tokenizers.ByteLevel.alphabet())}/tokenizer.json"


class Command:
    """The command with a tokenizer, and pairs of its own."""

    def __init__(self, path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self._capsys = path, capsys
        self.files = ("--pairs", str(path), "--tokenizer", tokenizer)
        self.write(
            {"before": BEFORE, "after": AFTER, "language": "python", "edit_ratio": 0.05},
            {"before": BEFORE, "after": BEFORE},
            {"before": "", "after": "ü", "language": "go", "edit_ratio": 1},
        )

    def write(self, *rows: dict[str, Any]) -> None:
        self.path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def print(self, *flags: str) -> str:
        assert main(["predictions", *self.files, *flags]) == 0
        return self._capsys.readouterr().out

    def report(self, *flags: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.print(*flags, "--json"))
        return report


@pytest.fixture
def run(tmp_path: Path, tokenizer_path: str, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path / "pairs.jsonl", tokenizer_path, capsys)


def test_text_in_the_prompt_is_followed_as_the_attached_one_is(run: Command) -> None:
    long = "".join(f"{number}: {BEFORE}" for number in range(20))
    run.write({"before": long + BEFORE, "after": long + AFTER})
    attached, prompt = (run.report("--source", source) for source in ("prediction", "prompt"))
    assert list(prompt["by_edit_ratio"]) == list(attached["by_edit_ratio"])
    assert prompt["passes"] == attached["passes"] < prompt["output_tokens"] / 2


def test_methods_and_windows_can_be_several(run: Command) -> None:
    flags = ("--method", "exact,line,ngram", "--window", "4,8", "--limit", "1")
    reports = run.report(*flags)["methods"]
    found = [(report["method"], report["window"]) for report in reports]
    assert found == list(product(("exact", "line", "ngram"), (4, 8)))
    assert all(report["pairs"] == 1 for report in reports)
    table = run.print("--method", "all", "--explain-passes")
    assert all(word in table for word in (*METHODS, "diverged"))


def test_passes_are_explained(run: Command) -> None:
    flags = ("--window", "64", "--marginal-cost", "0", "--explain-passes", "--limit", "1")
    report = run.report("--method", "exact", *flags)
    rest = len("HREE\nfour\nfive\nsix\n")
    assert report["passes"] == 1 + rest
    assert report["passes_by_end"] == {"exhausted": 0, "diverged": 1, "silent": rest, "finished": 0}
    # From the last E on the oracle has the whole rest, a token less in every pass.
    lost = sum(range(1, len("\nfour\nfive\nsix\n") + 1))
    assert report["lost_tokens"] == {"exhausted": 0, "diverged": 0, "silent": lost, "finished": 0}


def test_width_follows_the_marginal_cost(run: Command) -> None:
    costs = ("0", "0.01", "0.05", "1")
    reports = [run.report("--method", "ngram", "--marginal-cost", cost) for cost in costs]
    wasted = [report["wasted_per_accepted"] for report in reports[:3]]
    assert wasted == sorted(wasted, reverse=True)
    # A token that costs as much as a pass is never worth it: none is as likely as that.
    assert (reports[3]["tokens_per_pass"], reports[3]["speedup"]) == (1, 1)
    free = reports[0]
    assert free["speedup"] == free["tokens_per_pass"]
    assert free["oracle_speedup"] == free["oracle_tokens_per_pass"]


def test_figures_of_one_request() -> None:
    predicted = array("i", range(20))
    truth = array("i", [*range(10), 50, 51])
    outcomes = Simulation([Pair(predicted, array("i"), truth, {})]).run(
        Baseline(ExactFollower), 4, 0.01
    )
    report = summarise(outcomes, method="exact", window=4, marginal_cost=0.01)
    # 0-3 and 4, 5-8 and 9, then four wrong and 50, then nothing and 51.
    assert report["passes"] == 4
    assert report["wasted_per_accepted"] == 0.5
    assert report["speedup"] == round(12 / (4 + 0.12), 4)
    assert report["oracle_speedup"] == round(12 / (4 + 0.08), 4)
    assert "exact" in describe([report])


def test_wrong_pairs_are_explained(run: Command) -> None:
    for content, message in (
        ("", "has no pairs"),
        ("{", "line 1 is not JSON"),
        ('{"prompt": 3, "answer": "x"}', "has no text 'prompt'"),
        ("[]", "line 1 is not an object"),
        ('{"before": "a", "after": "b"}\n{"before": "a"}', "line 2 has no text 'after'"),
        ('{"before": "", "after": "", "edit_ratio": "x"}', "'edit_ratio' must be a number"),
    ):
        run.path.write_text(content, encoding="utf-8")
        with pytest.raises(SetupError, match=message):
            main(["predictions", *run.files])


def test_cases_show_passes_next_to_the_oracles(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "large_cases", list)
    monkeypatch.setattr(command, "small_cases", lambda: small_cases()[:3])
    words = ("--cases", "--method", "exact,line")
    cases = run.report(*words)["cases"]
    for case in cases.values():
        assert set(case["passes"]) == set(case["proposer_us"]) == {"exact", "line"}
        assert case["passes"]["exact"] >= case["oracle_passes"] >= case["oracle_own_passes"]
    assert cases["exact"]["passes"]["exact"] == cases["exact"]["oracle_passes"]
    # The table is of the same cases.
    table = run.print(*words).splitlines()
    assert len(table) == 1 + len(cases) == 1 + 3
    assert table[0].split()[-2:] == ["exact", "line"]
