"""Corrects fitted weights by what they bring: the speedup of simulated requests.

A tree follows the continuations that look best, which are those whose chances are overestimated
most, and the more so the further they go. Fitting step by step does not see that. So what is added
to the odds of going on, less and less with each doubling of the nodes before, and to the odds of no
candidate being right, is chosen by simulation.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from math import log

from optimist_aligner.follower import Aligner
from optimist_aligner.model.common import Continuations
from optimist_aligner.model.layout import (
    MOST_LENGTH,
    NUM_KINDS,
    NUM_LENGTHS,
    NUM_STEPS,
    START,
)
from optimist_aligner.model.weights import Weights
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_bench.harness.pair import Pair
from optimist_bench.predictions.simulator import simulate

DOUBTS = (0.0, 0.15, 0.25, 0.35, 0.45)
"""Taken from the log odds of going on for each doubling of the nodes before."""
MOST_DOUBT = 1.6
TRUSTS = (0.0, 0.3, 0.6, 0.9)
"""Taken from the log odds of no candidate being right."""
MARGINAL_COSTS = (0.01, 0.03)
WINDOW = 64
_FIRST_STEP = 0.6
_SPARED = {10: 0.375, 11: 0.625, 12: 1.0}
"""Shares of the doubt that matches with 17, 25 and 32 tokens of agreement are spared: what repeats
for so long, like a rename all over a file, goes on."""

Run = Callable[[Callable[[list[float]], float], list[list[float]]], Iterable[float]]
"""Computes a function of each of some weights."""


def correct(logits: Sequence[float], doubt: float, trust: float) -> list[float]:
    """Returns weights with continuations doubted and candidates trusted more."""
    corrected = list(logits)
    start = START["next_step"]
    for kind, bucket in product(range(NUM_KINDS), range(1, NUM_STEPS)):
        taken = min(MOST_DOUBT, doubt * (bucket - _FIRST_STEP))
        corrected[start + kind * NUM_STEPS + bucket] -= taken
    most = min(MOST_DOUBT, doubt * (MOST_LENGTH.bit_length() - _FIRST_STEP))
    start = START["next_length"]
    for source, (bucket, share) in product(range(2), _SPARED.items()):
        corrected[start + source * NUM_LENGTHS + bucket] += share * most
    corrected[START["none"]] -= trust
    return corrected


def measure(
    vocabulary: Vocabulary,
    continuations: Continuations,
    pairs: Sequence[Pair],
    logits: list[float],
) -> float:
    """Returns the mean logarithm of the speedups at MARGINAL_COSTS."""
    algorithm = Aligner(vocabulary, Weights(logits), continuations)
    total = 0.0
    for marginal_cost in MARGINAL_COSTS:
        num_tokens = cost = 0.0
        for pair in pairs:
            run = simulate(algorithm, pair, WINDOW, marginal_cost, pair.truth)
            num_tokens += len(pair.truth)
            cost += run.cost
        total += log(num_tokens / cost)
    return total / len(MARGINAL_COSTS)


def calibrate(
    vocabulary: Vocabulary,
    continuations: Continuations,
    pairs: Sequence[Pair],
    logits: Sequence[float],
    run: Run,
) -> list[float]:
    """Returns the weights with the corrections that bring most.

    Args:
        vocabulary: Of the tokenizer that the pairs were made with.
        continuations: What is common.
        pairs: Requests that the weights were fitted to, or some of them.
        logits: The fitted weights.
        run: Computes a function of each of some weights.
    """
    choices = [correct(logits, *each) for each in product(DOUBTS, TRUSTS)]
    gains = list(run(partial(measure, vocabulary, continuations, pairs), choices))
    return choices[max(range(len(choices)), key=gains.__getitem__)]
