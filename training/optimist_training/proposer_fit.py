"""Fits the proposer's weights to examples: maximum likelihood of the right token in each group.

In a group with logits s the right token has the chance sum(exp(s) of right rows) /
(exp(none) + sum(exp(s))). Adam (arXiv 1412.6980) with a learning rate that falls to 0.
"""

import numpy as np
import numpy.typing as npt

from optimist_proposer.core.auto.layout import BLOCKS, NUM_KINDS, NUM_WEIGHTS
from optimist_training.proposer_examples import WIDTH, Examples

Column = npt.NDArray[np.float64]

NUM_EPOCHS = 6
GROUPS_PER_STEP = 500
LEARNING_RATE = 0.05
LAST_LEARNING_RATE = 0.002
DECAY = 4e-6
MOST_LOGIT = 25.0
_NEXT_LOGIT = BLOCKS["next_logit"].start


def fit(weights: Column, examples: list[Examples], *, is_step: bool, seed: int) -> float:
    """Changes weights in place; returns the mean negative log likelihood of the last epoch.

    Args:
        weights: One more than the model has; the last one stays 0 [NUM_WEIGHTS + 1].
        examples: Packed.
        is_step: Whether they are continuations, of which the logit of the first node is a feature.
        seed: Of the order of examples.
    """
    random = np.random.default_rng(seed)
    batches = [
        (each, first, min(first + GROUPS_PER_STEP, len(each.bounds) - 1))
        for each in examples
        for first in range(0, len(each.bounds) - 1, GROUPS_PER_STEP)
    ]
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    num_steps, total = 0, NUM_EPOCHS * len(batches)
    loss = num_groups = 0.0
    for _ in range(NUM_EPOCHS):
        loss = num_groups = 0.0
        for index in random.permutation(len(batches)):
            each, first, end = batches[index]
            gradient, part = _gradient(weights, each, first, end, is_step)
            loss, num_groups = loss + part, num_groups + end - first
            gradient = gradient / (end - first) + DECAY * weights * (gradient != 0)
            num_steps += 1
            mean += 0.1 * (gradient - mean)
            square += 0.005 * (gradient**2 - square)
            rate = LEARNING_RATE * (1 - num_steps / total) + LAST_LEARNING_RATE
            step = (mean / (1 - 0.9**num_steps)) / (np.sqrt(square / (1 - 0.995**num_steps)) + 1e-6)
            weights -= rate * step * (square > 0)
            weights[NUM_WEIGHTS] = 0
    return loss / max(num_groups, 1)


def _gradient(
    weights: Column, examples: Examples, first: int, end: int, is_step: bool
) -> tuple[Column, float]:
    """Returns the gradient of the loss of some groups, and the loss."""
    start, stop = examples.bounds[first], examples.bounds[end]
    features = examples.features[start:stop]
    none_features = examples.none_features[first:end]
    groups = np.repeat(np.arange(end - first), np.diff(examples.bounds[first : end + 1]))
    logits = weights[features].sum(1)
    if is_step:
        kinds, base = examples.kinds[start:stop], examples.logits[start:stop]
        logits = logits + weights[_NEXT_LOGIT + kinds] * base
    logits -= weights[none_features].sum(1)[groups]
    odds = np.exp(np.clip(logits, -MOST_LOGIT, MOST_LOGIT))
    total = 1 + np.bincount(groups, odds, end - first)
    is_right = examples.is_right[start:stop]
    right = np.bincount(groups, odds * is_right, end - first)
    has_right = right > 0
    of_right = np.where(has_right, right, 1.0)
    loss = float(-np.log(of_right / total).sum())
    slopes = odds / total[groups] - np.where(
        has_right[groups], is_right * odds / of_right[groups], 0.0
    )
    size = NUM_WEIGHTS + 1
    gradient: Column = np.bincount(features.ravel(), np.repeat(slopes, WIDTH), size)
    if is_step:
        ends = slice(_NEXT_LOGIT, _NEXT_LOGIT + NUM_KINDS)
        gradient[ends] += np.bincount(kinds, slopes * base, NUM_KINDS)
    else:
        of_none = -np.bincount(groups, slopes, end - first)
        width = none_features.shape[1]
        gradient += np.bincount(none_features.ravel(), np.repeat(of_none, width), size)
    gradient[NUM_WEIGHTS] = 0
    return gradient, loss
