"""The command: which pairs, methods and windows are simulated."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from optimist_aligner import Aligner
from optimist_aligner.algorithm import Algorithm
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_bench.harness.pair import load_pairs, load_tokenizer, load_vocabulary
from optimist_bench.predictions.baselines.exact import ExactAlgorithm
from optimist_bench.predictions.baselines.myers import MyersAlgorithm
from optimist_bench.predictions.baselines.ngram import NgramAlgorithm
from optimist_bench.predictions.baselines.suffix import SuffixAlgorithm
from optimist_bench.predictions.cases import compare, describe_cases, large_cases, small_cases
from optimist_bench.predictions.report import describe, explain_passes, summarise
from optimist_bench.predictions.simulator import Simulation
from optimist_common.errors import SetupError
from optimist_common.settings import CommaSeparated, ServiceSettings, load_settings
from optimist_proposer.core.algorithms import ALGORITHMS

METHODS: dict[str, Callable[[Vocabulary], Algorithm]] = {
    **ALGORITHMS,
    "auto-chain": lambda vocabulary: Aligner(vocabulary, is_chain=True),
    "exact": lambda _: ExactAlgorithm(),
    "ngram": lambda _: NgramAlgorithm(),
    "suffix": lambda _: SuffixAlgorithm(),
    "suffix-chain": lambda _: SuffixAlgorithm(is_chain=True),
    "myers": lambda _: MyersAlgorithm(),
}
"""What proposers offer, the chains of `auto`, and the baselines."""
_SWITCHES = ("--json", "--explain-passes", "--cases")


class PredictionsSettings(ServiceSettings):
    """Simulates requests with known answers, without a model; a pass costs 1 + C per drafted token.

    --json prints the report as one line of JSON instead; --explain-passes adds what ended
    the passes; --cases simulates a generated edit of every kind, instead of pairs.
    """

    section: ClassVar[str] = "bench_predictions"

    pairs: str = Field(
        "", description="JSON lines with `before` and `after`, or with `prompt`, `answer`"
    )
    source: Literal["prediction", "prompt"] = Field(
        "prediction", description="where `before` is: prediction (attached), or prompt (in a fence)"
    )
    tokenizer: str = Field(
        "models/tiny-edit/tokenizer.json", description="tokenizer file of Hugging Face's library"
    )
    method: CommaSeparated = Field(
        ["auto"], description=f"of {', '.join(METHODS)}, with commas; or all"
    )
    window: CommaSeparated = Field(["64"], description="most drafted tokens a pass, with commas")
    marginal_cost: float = Field(
        0.01, ge=0, le=1, description="cost of a drafted token, as a share of a pass"
    )
    limit: int = Field(0, ge=0, description="most pairs; 0 for all")

    @field_validator("method")
    @classmethod
    def _are_methods(cls, values: list[str]) -> list[str]:
        for value in values:
            if value not in (*METHODS, "all"):
                raise ValueError(f"there is no {value!r}; there are: {', '.join(METHODS)}, all")
        if not values:
            raise ValueError("must name at least one")
        return list(METHODS) if "all" in values else values

    @field_validator("window")
    @classmethod
    def _are_windows(cls, values: list[str]) -> list[str]:
        if not values or not all(value.isdecimal() and 1 <= int(value) <= 4096 for value in values):
            raise ValueError("must be numbers from 1 to 4096, with commas")
        return values


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    switches = {name: name in arguments for name in _SWITCHES}
    rest = _joined([word for word in arguments if word not in switches], "--method", "--window")
    settings = load_settings(PredictionsSettings, rest)
    if switches["--cases"]:
        report = _cases(settings)
        print(json.dumps(report) if switches["--json"] else describe_cases(report["cases"]))
        return 0
    reports = list(_reports(settings, explain=switches["--explain-passes"]))
    if not switches["--json"]:
        print(describe(reports))
    else:
        print(json.dumps(reports[0] if len(reports) == 1 else {"methods": reports}))
    return 0


def _joined(arguments: Sequence[str], *flags: str) -> list[str]:
    """Returns the arguments with the values of a repeated flag joined by commas."""
    values: dict[str, list[str]] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in flags:
            values.setdefault(flag, []).append(value if equals else next(words, ""))
        else:
            rest.append(word)
    return [*rest, *(f"{flag}={','.join(parts)}" for flag, parts in values.items())]


def _cases(settings: PredictionsSettings) -> dict[str, Any]:
    if len(settings.window) > 1:
        raise SetupError("--window: one only with --cases")
    tokenizer = load_tokenizer(settings.tokenizer)
    vocabulary = load_vocabulary(tokenizer)
    algorithms = {name: METHODS[name](vocabulary) for name in settings.method}
    cases = [*small_cases(), *large_cases()]
    window, cost = int(settings.window[0]), settings.marginal_cost
    return {
        "window": window,
        "marginal_cost": cost,
        "cases": compare(cases, algorithms, tokenizer, window, cost),
    }


def _reports(settings: PredictionsSettings, *, explain: bool) -> Iterator[dict[str, Any]]:
    if not settings.pairs:
        raise SetupError("--pairs is required, or --cases (see --help)")
    tokenizer = load_tokenizer(settings.tokenizer)
    vocabulary = load_vocabulary(tokenizer)
    pairs = load_pairs(settings.pairs, tokenizer, settings.limit, settings.source)
    simulation = Simulation(pairs)
    for method in settings.method:
        algorithm = METHODS[method](vocabulary)
        for window in map(int, settings.window):
            outcomes = simulation.run(algorithm, window, settings.marginal_cost)
            report = summarise(
                outcomes, method=method, window=window, marginal_cost=settings.marginal_cost
            )
            yield {**report, **(explain_passes(outcomes) if explain else {})}
