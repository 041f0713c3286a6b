"""An edit of every kind: passes next to the oracle's, which may copy one span of the prediction."""

from functools import cache
from math import ceil
from typing import Any

import pytest

from optimist_aligner.text.vocabulary import Vocabulary
from optimist_bench.harness.pair import load_tokenizer, load_vocabulary
from optimist_bench.predictions.cases import Case, compare, large_cases, small_cases
from optimist_bench.predictions.command import METHODS
from tests.stack import BUNDLED_MODEL

WINDOW = 64

USUAL = (1.5, 12)
"""Passes are at most so many times the oracle's, plus so many."""
BOUNDS: dict[str, dict[str, tuple[float, int]]] = {
    "auto": {
        # What is learned is proposed everywhere, which no copy can.
        "renamed everywhere": (0.9, 0),
        "re-indented": (1.0, 12),
        "CR LF output": (1.0, 12),
        # The output so far is a source too.
        "nothing matches": (0.75, 0),
        "empty prediction": (0.5, 0),
        "prediction shorter": (2.0, 12),
    },
    "suffix": {
        "renamed everywhere": (4.0, 0),
        "re-indented": (2.5, 0),
        "CR LF output": (2.5, 0),
        "nothing matches": (0.75, 0),
        "empty prediction": (0.5, 0),
        "prediction shorter": (2.0, 12),
    },
}


def simulate(case: Case, *methods: str) -> Any:
    """Returns the entry of a case; the simulation fails if an output is not the truth."""
    tokenizer, vocabulary = bundled_tokenizer()
    algorithms = {name: METHODS[name](vocabulary) for name in methods}
    return compare([case], algorithms, tokenizer, WINDOW, 0.01)[case.name]


@cache
def bundled_tokenizer() -> tuple[Any, Vocabulary]:
    tokenizer = load_tokenizer(str(BUNDLED_MODEL / "tokenizer.json"))
    return tokenizer, load_vocabulary(tokenizer)


@pytest.mark.parametrize("case", small_cases(), ids=lambda case: str(case.name))
def test_passes_are_near_the_oracles(case: Case) -> None:
    name = case.name
    entry = simulate(case, "auto", "exact", "line", "ngram", "suffix")
    oracle = entry["oracle_passes"]
    for method, passes in entry["passes"].items():
        if method in BOUNDS:
            factor, extra = BOUNDS[method].get(name, USUAL)
            assert passes <= factor * oracle + extra, method
        if name in ("exact", "prediction longer") and method != "ngram":
            assert passes == oracle, method
        # What only copies is not ahead of the oracle that copies output too.
        assert method == "auto" or passes >= entry["oracle_own_passes"], method
        assert method not in ("exact", "line") or passes >= oracle, method
        # Nor has a pass more tokens than its window and one.
        assert ceil(entry["output_tokens"] / (WINDOW + 1)) <= passes <= entry["output_tokens"]
        assert entry["drafted"][method] <= passes * WINDOW
    # A cursor by lines finds its place again, and an exact one does not.
    if name in ("line changed", "line inserted", "line deleted", "block moved"):
        assert entry["passes"]["line"] < entry["passes"]["exact"] / 10


def test_a_large_text() -> None:
    (case,) = (each for each in large_cases() if each.name == "4,000 lines")
    assert case.before.count("\n") > 4000
    entry = simulate(case, "auto")
    factor, extra = USUAL
    assert entry["passes"]["auto"] <= factor * entry["oracle_passes"] + extra
