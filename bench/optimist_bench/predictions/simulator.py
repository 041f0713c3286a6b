"""Simulates a request without a model: the target emits the truth, whatever is proposed.

In a pass it is given a draft tree, accepts the longest path that agrees with the truth, and emits
one token of its own. A pass costs 1 and `marginal_cost` for each drafted token. A node is drafted
while its value, the chance that it is accepted, is worth its cost: a token was gained so far at
1/rate, with rate = (tokens + PRIOR_TOKENS) / (cost + PRIOR_COST) over the passes of this request.
So the width is chosen by what is known at that time, and by the same rule for all algorithms.
"""

import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from optimist_aligner.algorithm import Algorithm
from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_bench.harness.pair import Pair
from optimist_bench.predictions.oracle import (
    Course,
    greedy_course,
    span_lengths,
    span_lengths_with_own,
)

PRIOR_TOKENS = 64.0
PRIOR_COST = 8.0
"""A request is expected to gain 8 tokens for the cost of a pass, with the weight of 8 passes."""

ENDS = ("exhausted", "diverged", "silent", "finished")
"""What ended the accepted part of a pass: the draft was used up, no branch of it was right, there
was none, the output was complete."""


@dataclass
class Run:
    """What became of one request."""

    emitted: "array[int]"
    cost: float = 0.0
    num_passes: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    start_seconds: float = 0.0
    pass_seconds: list[float] = field(default_factory=list)
    """Time of the proposer in each pass [num_passes]."""
    ends: Counter[str] = field(default_factory=Counter)
    """Number of passes by what ended them."""
    lost_tokens: Counter[str] = field(default_factory=Counter)
    """Tokens that the span oracle had accepted more in these passes."""


def simulate(
    algorithm: Algorithm,
    pair: Pair,
    window: int,
    marginal_cost: float,
    spans: "array[int]",
) -> Run:
    """Runs one request to its end.

    Args:
        algorithm: What proposes.
        pair: The request and its truth.
        window: Most drafted tokens of a pass.
        marginal_cost: Cost of a drafted token, as a share of a pass.
        spans: Tokens that the span oracle would get accepted from each position on [num_tokens].
    """
    clock = time.perf_counter
    truth, run = pair.truth, Run(array("i"))
    started = clock()
    follower = algorithm.prepare(pair.sources).follow()
    run.start_seconds = clock() - started
    while len(run.emitted) < len(truth):
        position = len(run.emitted)
        rate = (position + PRIOR_TOKENS) / (run.cost + PRIOR_COST)
        started = clock()
        draft = follower.propose(window, rate * marginal_cost)
        seconds = clock() - started
        last, num_accepted = draft.walk(truth[position:], NO_PARENT)
        emitted = truth[position : position + num_accepted + 1]
        started = clock()
        follower.observe(emitted)
        run.pass_seconds.append(seconds + clock() - started)
        run.emitted.extend(emitted)
        run.num_passes += 1
        run.num_drafted += len(draft)
        run.num_accepted += num_accepted
        run.cost += 1 + marginal_cost * len(draft)
        end = _end(draft, last, finished=position + num_accepted == len(truth))
        run.ends[end] += 1
        run.lost_tokens[end] += max(0, min(spans[position], window) - num_accepted)
    return run


def _end(draft: Draft, last: int, *, finished: bool) -> str:
    if finished:
        return "finished"
    if not len(draft):
        return "silent"
    return "diverged" if last in draft.parents else "exhausted"


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
