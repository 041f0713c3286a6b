"""Edits of one kind each, generated: passes of every algorithm next to the oracle's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from optimist_aligner.algorithm import Algorithm
from optimist_bench.harness.case_text import (
    function,
    functions,
    prose,
    unicode_lines,
)
from optimist_bench.harness.command import format_table
from optimist_bench.harness.pair import make_pair
from optimist_bench.predictions.report import percentiles
from optimist_bench.predictions.simulator import Simulation

_NUM_FUNCTIONS = 24
_LARGE = {"4,000 lines": 348, "1 MB": 2400}
"""Number of functions of each large text."""


@dataclass(frozen=True)
class Case:
    """A prediction and the text that comes instead."""

    name: str
    before: str
    after: str


def _replaced(text: str, number: int, removed: int, replacement: str) -> str:
    """Returns the text with some lines from `number` on replaced."""
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:number], replacement, *lines[number + removed :]])


def small_cases() -> list[Case]:
    """Returns an edit of every kind, of some 10 KB."""
    parts = functions(_NUM_FUNCTIONS)
    text = "".join(parts)
    new = function(1000, seed=7)
    middle = len(parts) // 2
    indented = re.sub(r"(?m)^(?=.)", "    ", "".join(parts[8:14]))
    long_line = "values = [" + ", ".join(str(number * 37 % 1009) for number in range(800)) + "]\n"
    strange = unicode_lines(60)
    changed = "    for item in sorted(session.everything, key=len):\n"
    lines = text.splitlines()
    number = lines.index("    found = []", len(lines) // 2) + 1
    return [
        Case("nothing matches", text, prose(400)),
        Case("exact", text, text),
        Case("line changed", text, _replaced(text, number, 1, changed)),
        Case("line inserted", text, _replaced(text, number, 0, changed)),
        Case("line deleted", text, _replaced(text, number, 1, "")),
        Case("block inserted", text, "".join([*parts[:middle], new, *parts[middle:]])),
        Case("block deleted", text, "".join([*parts[:middle], *parts[middle + 3 :]])),
        Case(
            "block moved",
            text,
            "".join([*parts[:4], *parts[8:middle], *parts[4:8], *parts[middle:]]),
        ),
        Case(
            "block duplicated",
            text,
            "".join([*parts[:middle], parts[3], *parts[middle:]]),
        ),
        Case("renamed everywhere", text, re.sub(r"\bsession\b", "connection", text)),
        Case("re-indented", text, "".join([*parts[:8], "class Store:\n", indented, *parts[14:]])),
        Case("fence before", text, f"```python\n{text}```\n"),
        Case("preamble before", text, f"Here is the file with the change you asked for:\n\n{text}"),
        Case("CR LF output", text, text.replace("\n", "\r\n")),
        Case("one long line", long_line, long_line.replace(" 777,", " 778,", 1)),
        Case("prediction shorter", "".join(parts[:middle]), text),
        Case("prediction longer", text, "".join(parts[:middle])),
        Case(
            "Unicode",
            "".join(strange),
            "".join([*strange[:30], "31: 新しい行 🎉\n", *strange[33:]]),
        ),
        Case("empty prediction", "", text),
        Case("empty output", text, ""),
    ]


def large_cases() -> list[Case]:
    """Returns large texts in which every 40th function is new."""
    return [_large_case(name, count) for name, count in _LARGE.items()]


def _large_case(name: str, count: int) -> Case:
    parts = functions(count)
    changed = [
        function(number + 10_000, seed=7) if number % 40 == 20 else part
        for number, part in enumerate(parts)
    ]
    return Case(name, "".join(parts), "".join(changed))


def compare(
    cases: Sequence[Case],
    algorithms: Mapping[str, Algorithm],
    tokenizer: Tokenizer,
    window: int,
    marginal_cost: float,
) -> dict[str, Any]:
    """Returns passes and times of each algorithm, and passes of the oracles, for each case.

    Args:
        cases: The cases.
        algorithms: Algorithms by name.
        tokenizer: Makes tokens of the texts.
        window: Most drafted tokens of a pass.
        marginal_cost: Cost of a drafted token, as a share of a pass.
    """
    pairs = [make_pair(tokenizer, case.before, case.after, ratio=0.0) for case in cases]
    simulation = Simulation(pairs)
    runs = {
        name: simulation.run(algorithm, window, marginal_cost)
        for name, algorithm in algorithms.items()
    }
    report = {}
    for number, case in enumerate(cases):
        outcomes = {name: outcomes[number] for name, outcomes in runs.items()}
        first = next(iter(outcomes.values()))
        report[case.name] = {
            "output_tokens": len(first.run.emitted),
            "oracle_passes": first.oracle.num_passes,
            "oracle_own_passes": first.oracle_own.num_passes,
            "passes": {name: one.run.num_passes for name, one in outcomes.items()},
            "drafted": {name: one.run.num_drafted for name, one in outcomes.items()},
            "proposer_us": {
                name: percentiles(one.run.pass_seconds, 1e6) for name, one in outcomes.items()
            },
            "start_ms": {
                name: round(one.run.start_seconds * 1e3, 3) for name, one in outcomes.items()
            },
        }
    return report


def describe_cases(report: dict[str, Any]) -> str:
    """Returns a table: passes of the oracles and of each algorithm."""
    methods = list(next(iter(report.values()))["passes"])
    header = ["case", "tokens", "oracle", "with own output", *methods]
    rows = [
        [
            name,
            case["output_tokens"],
            case["oracle_passes"],
            case["oracle_own_passes"],
            *(case["passes"][method] for method in methods),
        ]
        for name, case in report.items()
    ]
    return format_table(header, rows)
