"""An edit of every kind: passes next to the oracle's, which may copy one span of the prediction."""

from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from optimist_aligner.algorithm import Algorithm
from optimist_bench.harness.pair import load_tokenizer, load_vocabulary
from optimist_bench.predictions.cases import compare, large_cases, small_cases
from optimist_bench.predictions.command import METHODS

TOKENIZER = load_tokenizer(
    str(Path(__file__).parents[3] / "models" / "tiny-edit" / "tokenizer.json")
)
WINDOW = 64
COMPARED = ("auto", "exact", "line", "ngram", "suffix")
CASES = {case.name: case for case in small_cases()}
LARGE = {case.name: case for case in large_cases()}

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


@cache
def algorithm(name: str) -> Algorithm:
    return METHODS[name](load_vocabulary(TOKENIZER))


@cache
def report(method: str, case: str, marginal_cost: float = 0.01) -> Any:
    """Returns the entry of one case; the simulation fails if an output is not the truth."""
    entries = compare([CASES[case]], {method: algorithm(method)}, TOKENIZER, WINDOW, marginal_cost)
    return entries[case]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", COMPARED)
def test_passes_are_near_the_oracles(method: str, case: str) -> None:
    entry = report(method, case)
    passes, oracle = entry["passes"][method], entry["oracle_passes"]
    if method in BOUNDS:
        factor, extra = BOUNDS[method].get(case, USUAL)
        assert passes <= factor * oracle + extra
    if case in ("exact", "prediction longer") and method != "ngram":
        assert passes == oracle
    # What only copies is not ahead of the oracle that copies output too.
    assert method == "auto" or passes >= entry["oracle_own_passes"]
    assert method not in ("exact", "line") or passes >= oracle
    # Nor has a pass more tokens than its window and one.
    assert ceil(entry["output_tokens"] / (WINDOW + 1)) <= passes <= entry["output_tokens"]
    assert entry["drafted"][method] <= passes * WINDOW


def test_line_cursor_finds_its_place_again_and_exact_does_not() -> None:
    for case in ("line changed", "line inserted", "line deleted", "block moved"):
        exact, line = (report(method, case)["passes"][method] for method in ("exact", "line"))
        assert line < exact / 10


def test_a_large_text() -> None:
    case, method = "4,000 lines", "auto"
    assert LARGE[case].before.count("\n") > 4000
    entry = compare([LARGE[case]], {method: algorithm(method)}, TOKENIZER, WINDOW, 0.01)[case]
    factor, extra = USUAL
    assert entry["passes"][method] <= factor * entry["oracle_passes"] + extra
