"""Fits of the proposer's weights, and corrections of what was fitted."""

from array import array

import numpy as np
import pytest

from optimist_aligner.model.common import Continuations
from optimist_aligner.model.layout import BLOCKS, NUM_KINDS, NUM_WEIGHTS
from optimist_aligner.model.weights import load_weights
from optimist_aligner.text.sources import INT32
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_bench.harness.pair import Pair
from optimist_training.proposer.calibration import calibrate, correct, measure
from optimist_training.proposer.fit import (
    NUM_NONE_FEATURES,
    Column,
    ExampleBuilder,
    Examples,
    fit,
    loss_gradient,
)

NEXT_LOGIT = BLOCKS["next_logit"].start
FEATURES = 40
"""So many of the first features are used."""


def random_weights(seed: int, scale: float = 1.0) -> Column:
    weights = np.random.default_rng(seed).normal(0, scale, NUM_WEIGHTS + 1)
    weights[NUM_WEIGHTS] = 0
    return weights


def sampled(weights: Column, num_groups: int, seed: int, *, is_step: bool = False) -> Examples:
    """Returns groups in which each row is right as often as the weights say."""
    generator = np.random.default_rng(seed)
    builder = ExampleBuilder()
    for _ in range(num_groups):
        rows = [
            tuple(generator.choice(FEATURES, 3, replace=False).tolist())
            for _ in range(generator.integers(0, 5))
        ]
        bases = generator.normal(0, 2, len(rows)) if is_step else np.zeros(len(rows))
        kinds = generator.integers(0, NUM_KINDS, len(rows))
        none = tuple(generator.choice(FEATURES, NUM_NONE_FEATURES, replace=False) + FEATURES)
        logits = np.array([weights[list(row)].sum() for row in rows])
        if is_step:
            logits = logits + weights[NEXT_LOGIT + kinds] * bases
        odds = np.exp([weights[list(none)].sum(), *logits])
        chosen = generator.choice(len(odds), p=odds / odds.sum())
        for number, row in enumerate(rows, 1):
            builder.add_row(row, number == chosen, bases[number - 1], int(kinds[number - 1]))
        builder.end_group(none)
    return builder.build()


def mean_loss(weights: Column, examples: Examples, *, is_step: bool) -> float:
    _, loss = loss_gradient(weights, examples, 0, examples.num_groups, is_step=is_step)
    return loss / examples.num_groups


@pytest.mark.parametrize("is_step", [False, True])
def test_gradient_is_the_slope_of_the_loss(is_step: bool) -> None:
    weights = random_weights(1)
    examples = sampled(random_weights(2), 30, 3, is_step=is_step)
    gradient, _ = loss_gradient(weights, examples, 5, 30, is_step=is_step)
    used = [*range(2 * FEATURES), *range(NEXT_LOGIT, NEXT_LOGIT + NUM_KINDS)]
    for index in used:
        slope = 0.0
        for sign in (1, -1):
            moved = weights.copy()
            moved[index] += sign * 1e-5
            _, loss = loss_gradient(moved, examples, 5, 30, is_step=is_step)
            slope += sign * loss / 2e-5
        assert gradient[index] == pytest.approx(slope, abs=1e-5)
    assert np.count_nonzero(gradient[: 2 * FEATURES]) > FEATURES
    assert bool(gradient[NEXT_LOGIT : NEXT_LOGIT + NUM_KINDS].any()) == is_step


@pytest.mark.parametrize("is_step", [False, True])
def test_known_weights_are_recovered(is_step: bool) -> None:
    truth = random_weights(4, 0.7)
    examples = sampled(truth, 8_000, 5, is_step=is_step)
    weights = np.zeros(NUM_WEIGHTS + 1)
    loss = fit(weights, examples, is_step=is_step, seed=1)
    best = mean_loss(truth, examples, is_step=is_step)
    assert mean_loss(np.zeros(NUM_WEIGHTS + 1), examples, is_step=is_step) > best + 0.1
    assert loss < best + 0.02
    # Only differences count, since every row and every none has as many features as all others.
    found, known = (one[:FEATURES] - one[:FEATURES].mean() for one in (weights, truth))
    assert np.corrcoef(found, known)[0, 1] > 0.95
    assert np.abs(found - known).mean() < 0.2
    if is_step:
        ends = slice(NEXT_LOGIT, NEXT_LOGIT + NUM_KINDS)
        assert np.abs(weights[ends] - truth[ends]).max() < 0.2


NOTHING = Continuations([], [], [], [])
VOCABULARY = Vocabulary([f"t{number}" for number in range(100)])


def test_measure_is_higher_for_weights_that_know_than_for_none() -> None:
    text = list(range(60)) * 3
    before, after = array(INT32, text), array(INT32, [*text[:70], 99, *text[70:]])
    pairs = [Pair(before, array(INT32), after, {})]
    fitted, none = list(load_weights(is_rewrite=True).logits), [0.0] * NUM_WEIGHTS
    assert measure(VOCABULARY, NOTHING, pairs, fitted) > measure(VOCABULARY, NOTHING, pairs, none)


def test_calibration_takes_the_correction_that_brings_most() -> None:
    wanted = correct([0.0] * NUM_WEIGHTS, 0.25, 0.6)

    def run(_: object, choices: list[list[float]]) -> list[float]:
        return [float(choice == wanted) for choice in choices]

    assert calibrate(VOCABULARY, NOTHING, [], [0.0] * NUM_WEIGHTS, run) == wanted
