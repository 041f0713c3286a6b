"""The command: which pairs, methods and windows are simulated."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from optimist_aligner import Aligner
from optimist_aligner.algorithm import Algorithm
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_bench.harness.command import names, numbers, run_command
from optimist_bench.harness.pair import load_pairs, load_tokenizer, load_vocabulary
from optimist_bench.predictions.baselines import Baseline
from optimist_bench.predictions.baselines.exact import ExactFollower
from optimist_bench.predictions.baselines.myers import MyersFollower
from optimist_bench.predictions.baselines.ngram import NgramFollower
from optimist_bench.predictions.baselines.suffix import SuffixFollower
from optimist_bench.predictions.cases import compare, describe_cases, large_cases, small_cases
from optimist_bench.predictions.report import describe, explain_passes, summarise
from optimist_bench.predictions.simulator import Simulation
from optimist_common.errors import SetupError
from optimist_common.settings import CommaSeparated, ServiceSettings
from optimist_proposer.core.algorithms import ALGORITHMS

METHODS: dict[str, Callable[[Vocabulary], Algorithm]] = {
    **ALGORITHMS,
    "auto-chain": lambda vocabulary: Aligner(vocabulary, is_chain=True),
    "exact": lambda _: Baseline(ExactFollower),
    "ngram": lambda _: Baseline(NgramFollower),
    "suffix": lambda _: Baseline(SuffixFollower),
    "suffix-chain": lambda _: Baseline(partial(SuffixFollower, is_chain=True)),
    "myers": lambda _: Baseline(MyersFollower),
}
"""What proposers offer, the chains of `auto`, and the baselines."""


class PredictionsSettings(ServiceSettings):
    """Simulates requests with known answers, without a model; a pass costs 1 + C per drafted token.

    --json prints the report as one line of JSON instead.
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
    method: Annotated[CommaSeparated, names((*METHODS, "all"), required=True)] = Field(
        ["auto"], description=f"of {', '.join(METHODS)}, with commas; or all"
    )
    window: Annotated[CommaSeparated, numbers(1, 4096)] = Field(
        ["64"], description="most drafted tokens a pass, with commas"
    )
    marginal_cost: float = Field(
        0.01, ge=0, le=1, description="cost of a drafted token, as a share of a pass"
    )
    limit: int = Field(0, ge=0, description="most pairs; 0 for all")

    explain_passes: bool = Field(False, description="adds what ended the passes")
    cases: bool = Field(
        False, description="simulates a generated edit of every kind, instead of pairs"
    )


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    return run_command(PredictionsSettings, arguments, _measure, _describe)


def _measure(settings: PredictionsSettings) -> dict[str, Any]:
    methods = list(METHODS) if "all" in settings.method else settings.method
    if settings.cases:
        return _cases(settings, methods)
    reports = list(_reports(settings, methods))
    return reports[0] if len(reports) == 1 else {"methods": reports}


def _describe(report: dict[str, Any]) -> str:
    if "cases" in report:
        return describe_cases(report["cases"])
    return describe(report.get("methods", [report]))


def _cases(settings: PredictionsSettings, methods: Sequence[str]) -> dict[str, Any]:
    if len(settings.window) > 1:
        raise SetupError("--window: one only with --cases")
    tokenizer = load_tokenizer(settings.tokenizer)
    vocabulary = load_vocabulary(tokenizer)
    algorithms = {name: METHODS[name](vocabulary) for name in methods}
    cases = [*small_cases(), *large_cases()]
    window, cost = int(settings.window[0]), settings.marginal_cost
    return {
        "window": window,
        "marginal_cost": cost,
        "cases": compare(cases, algorithms, tokenizer, window, cost),
    }


def _reports(settings: PredictionsSettings, methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    if not settings.pairs:
        raise SetupError("--pairs is required, or --cases (see --help)")
    tokenizer = load_tokenizer(settings.tokenizer)
    vocabulary = load_vocabulary(tokenizer)
    pairs = load_pairs(settings.pairs, tokenizer, settings.limit, settings.source)
    simulation = Simulation(pairs)
    for method in methods:
        algorithm = METHODS[method](vocabulary)
        for window in map(int, settings.window):
            outcomes = simulation.run(algorithm, window, settings.marginal_cost)
            report = summarise(
                outcomes, method=method, window=window, marginal_cost=settings.marginal_cost
            )
            yield {**report, **(explain_passes(outcomes) if settings.explain_passes else {})}
