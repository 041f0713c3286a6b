"""The command: which pairs, methods and windows are simulated."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pydantic import Field, field_validator

from optimist_bench.predictions.oracle import (
    greedy_course,
    span_lengths,
    span_lengths_with_own,
)
from optimist_bench.predictions.pair import Pair, load_pairs, load_tokenizer, load_vocabulary
from optimist_bench.predictions.report import Outcome, describe, explain_passes, summarise
from optimist_bench.predictions.simulator import simulate
from optimist_common.settings import CommaSeparated, ServiceSettings, load_settings
from optimist_proposer.core.algorithm import Algorithm
from optimist_proposer.core.algorithms import ALGORITHMS

DEFAULT_METHOD = "auto" if "auto" in ALGORITHMS else "all"
_SWITCHES = ("--json", "--explain-passes")


class PredictionsSettings(ServiceSettings):
    """Simulates requests with a prediction, without a model; a pass costs 1 + C per drafted token.

    --json prints the report as one JSON object in the last line; --explain-passes adds what ended
    the passes.
    """

    section: ClassVar[str] = "bench_predictions"

    pairs: str = Field(description="JSON lines with `before` (the prediction) and `after`")
    tokenizer: str = Field(description="tokenizer.json of Hugging Face's library")
    method: CommaSeparated = Field(
        [DEFAULT_METHOD], description=f"of {', '.join(ALGORITHMS)}, with commas; or all"
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
            if value not in (*ALGORITHMS, "all"):
                raise ValueError(f"there is no {value!r}; there are: {', '.join(ALGORITHMS)}, all")
        if not values:
            raise ValueError("must name at least one")
        return list(ALGORITHMS) if "all" in values else values

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


def _reports(settings: PredictionsSettings, *, explain: bool) -> Iterator[dict[str, Any]]:
    tokenizer = load_tokenizer(settings.tokenizer)
    vocabulary = load_vocabulary(tokenizer)
    pairs = load_pairs(settings.pairs, tokenizer, settings.limit)
    simulation = Simulation(pairs)
    for method in settings.method:
        algorithm = ALGORITHMS[method](vocabulary)
        for window in map(int, settings.window):
            outcomes = simulation.run(algorithm, window, settings.marginal_cost)
            report = summarise(
                outcomes, method=method, window=window, marginal_cost=settings.marginal_cost
            )
            yield {**report, **(explain_passes(outcomes) if explain else {})}


class Simulation:
    """Pairs and what the oracles copy of them, for any number of methods and windows."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = [
            (
                pair,
                span_lengths(pair.predicted, pair.truth),
                span_lengths_with_own(pair.predicted, pair.truth),
            )
            for pair in pairs
        ]

    def run(self, algorithm: Algorithm, window: int, marginal_cost: float) -> list[Outcome]:
        """Simulates every pair.

        Raises:
            AssertionError: A request did not end with its truth.
        """
        outcomes = []
        for pair, spans, own_spans in self._pairs:
            run = simulate(algorithm, pair, window, marginal_cost, spans)
            if run.emitted != pair.truth:
                raise AssertionError("the simulated output is not the truth")
            outcomes.append(
                Outcome(
                    pair=pair,
                    run=run,
                    oracle=greedy_course(spans, window),
                    oracle_own=greedy_course(own_spans, window),
                )
            )
        return outcomes
