"""Pairs and what the oracles copy of them, for any number of methods and windows."""

from collections.abc import Sequence
from dataclasses import dataclass

from optimist_aligner.algorithm import Algorithm
from optimist_bench.harness.pair import Pair
from optimist_bench.predictions.oracle import (
    Course,
    greedy_course,
    span_lengths,
    span_lengths_with_own,
)
from optimist_bench.predictions.simulator import Run, simulate


@dataclass(frozen=True)
class Outcome:
    """One request beside the oracles."""

    pair: Pair
    run: Run
    oracle: Course
    oracle_own: Course


class Simulation:
    """Simulates the same requests with one algorithm after the other."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = [
            (
                pair,
                span_lengths(pair.source, pair.truth),
                span_lengths_with_own(pair.source, pair.truth),
            )
            for pair in pairs
        ]

    def run(self, algorithm: Algorithm, window: int, marginal_cost: float) -> list[Outcome]:
        """Simulates every pair.

        Args:
            algorithm: What proposes.
            window: Most drafted tokens of a pass.
            marginal_cost: Cost of a drafted token, as a share of a pass.

        Raises:
            AssertionError: An output was not the truth.
        """
        outcomes = []
        for pair, spans, own_spans in self._pairs:
            run = simulate(algorithm, pair, window, marginal_cost, spans)
            if run.emitted != pair.truth:
                raise AssertionError("the simulated output is not the truth")
            oracle, own = greedy_course(spans, window), greedy_course(own_spans, window)
            outcomes.append(Outcome(pair, run, oracle, own))
        return outcomes
