"""Fits the proposer's weights to examples: maximum likelihood of the right token in each group.

In a group with logits s the right token has the chance sum(exp(s) of right rows) /
(exp(none) + sum(exp(s))). Adam (arXiv 1412.6980) with a learning rate that falls to near 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimist_aligner.model.layout import NUM_KINDS, NUM_WEIGHTS, START

WIDTH = 12
"""Most features of a row."""
NUM_NONE_FEATURES = 5
NO_FEATURE = NUM_WEIGHTS
"""Fills up features; its weight stays 0."""
NO_FEATURES = (NO_FEATURE,) * NUM_NONE_FEATURES


@dataclass(frozen=True, slots=True)
class Examples:
    """Groups of rows; in each group at most one token is right, which several rows may be."""

    features: npt.NDArray[np.int32]
    """Of each row, filled up with NO_FEATURE [num_rows, WIDTH]."""
    is_right: npt.NDArray[np.bool_]
    """Whether a row's token is the right one [num_rows]."""
    logits: npt.NDArray[np.float64]
    """Logit of the first node, if the row is a node after it [num_rows]."""
    kinds: npt.NDArray[np.int64]
    """Kind of the candidate [num_rows]."""
    bounds: npt.NDArray[np.int64]
    """First row of each group, and the end of the last [num_groups + 1]."""
    none_features: npt.NDArray[np.int32]
    """Features of no row being right, filled up too [num_groups, NUM_NONE_FEATURES]."""

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self.bounds) - 1


def join(examples: Sequence[Examples]) -> Examples:
    """Returns the groups of all, in their order."""
    num_rows = np.cumsum([0, *(each.bounds[-1] for each in examples)])
    bounds = [each.bounds[1:] + start for each, start in zip(examples, num_rows, strict=False)]
    return Examples(
        np.concatenate([each.features for each in examples]),
        np.concatenate([each.is_right for each in examples]),
        np.concatenate([each.logits for each in examples]),
        np.concatenate([each.kinds for each in examples]),
        np.concatenate([np.zeros(1, np.int64), *bounds]),
        np.concatenate([each.none_features for each in examples]),
    )


class ExampleBuilder:
    """Takes rows one by one."""

    def __init__(self) -> None:
        self._features: list[tuple[int, ...]] = []
        self._none: list[tuple[int, ...]] = []
        self._right = bytearray()
        self._kinds = bytearray()
        self._logits: list[float] = []
        self._bounds = [0]

    def add_row(
        self, features: tuple[int, ...], is_right: bool, logit: float = 0.0, kind: int = 0
    ) -> None:
        """Adds a row to the group that the next `end_group` ends."""
        self._features.append(features + (NO_FEATURE,) * (WIDTH - len(features)))
        self._right.append(is_right)
        self._logits.append(logit)
        self._kinds.append(kind)

    def end_group(self, none: tuple[int, ...] = NO_FEATURES) -> None:
        """Ends a group, with the features of none of its rows being right."""
        self._bounds.append(len(self._features))
        self._none.append(none + (NO_FEATURE,) * (NUM_NONE_FEATURES - len(none)))

    def build(self) -> Examples:
        """Returns what was added."""
        return Examples(
            np.array(self._features, np.int32).reshape(-1, WIDTH),
            np.array(self._right, np.bool_),
            np.array(self._logits, np.float64),
            np.array(self._kinds, np.int64),
            np.array(self._bounds, np.int64),
            np.array(self._none, np.int32).reshape(-1, NUM_NONE_FEATURES),
        )


Column = npt.NDArray[np.float64]

NUM_EPOCHS = 6
GROUPS_PER_STEP = 500
LEARNING_RATE = 0.05
LAST_LEARNING_RATE = 0.002
DECAY = 4e-6
MOST_LOGIT = 25.0
_MEAN_RATE, _SQUARE_RATE = 0.1, 0.005
"""How fast Adam's averages follow."""
_NEXT_LOGIT = START["next_logit"]


def fit(weights: Column, examples: Examples, *, is_step: bool, seed: int) -> float:
    """Changes weights in place; returns the mean negative log likelihood of the last epoch.

    Args:
        weights: One more than the model has; the last one stays 0 [NUM_WEIGHTS + 1].
        examples: Nothing changes if there are none.
        is_step: Whether they are continuations, of which the logit of the first node is a feature.
        seed: Of the order of examples.
    """
    random = np.random.default_rng(seed)
    firsts = range(0, examples.num_groups, GROUPS_PER_STEP)
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    num_steps, total = 0, NUM_EPOCHS * len(firsts)
    loss = 0.0
    for _ in range(NUM_EPOCHS):
        loss = 0.0
        for index in random.permutation(len(firsts)):
            first = firsts[index]
            end = min(first + GROUPS_PER_STEP, examples.num_groups)
            gradient, part = loss_gradient(weights, examples, first, end, is_step=is_step)
            loss += part
            gradient = gradient / (end - first) + DECAY * weights * (gradient != 0)
            num_steps += 1
            mean += _MEAN_RATE * (gradient - mean)
            square += _SQUARE_RATE * (gradient**2 - square)
            rate = LEARNING_RATE * (1 - num_steps / total) + LAST_LEARNING_RATE
            direction = mean / (1 - (1 - _MEAN_RATE) ** num_steps)
            size = np.sqrt(square / (1 - (1 - _SQUARE_RATE) ** num_steps)) + 1e-6
            weights -= rate * direction / size * (square > 0)
            weights[NUM_WEIGHTS] = 0
    return loss / max(examples.num_groups, 1)


def loss_gradient(
    weights: Column, examples: Examples, first: int, end: int, *, is_step: bool
) -> tuple[Column, float]:
    """Returns the gradient of the loss of some groups [NUM_WEIGHTS + 1], and the loss."""
    num_groups = end - first
    start, stop = examples.bounds[first], examples.bounds[end]
    features = examples.features[start:stop]
    none_features = examples.none_features[first:end]
    groups = np.repeat(np.arange(num_groups), np.diff(examples.bounds[first : end + 1]))
    kinds, base = examples.kinds[start:stop], examples.logits[start:stop]
    logits = weights[features].sum(1) - weights[none_features].sum(1)[groups]
    if is_step:
        logits += weights[_NEXT_LOGIT + kinds] * base
    odds = np.exp(np.clip(logits, -MOST_LOGIT, MOST_LOGIT))
    total = 1 + np.bincount(groups, odds, num_groups)
    is_right = examples.is_right[start:stop]
    right = np.bincount(groups, odds * is_right, num_groups)
    right[right == 0] = 1.0  # None of them was right, which has odds of 1.
    loss = float(np.log(total / right).sum())
    slopes = odds / total[groups] - is_right * odds / right[groups]
    size = NUM_WEIGHTS + 1
    gradient: Column = np.bincount(features.ravel(), np.repeat(slopes, WIDTH), size).astype(float)
    of_none = np.repeat(np.bincount(groups, slopes, num_groups), NUM_NONE_FEATURES)
    gradient -= np.bincount(none_features.ravel(), of_none, size)
    if is_step:
        ends = slice(_NEXT_LOGIT, _NEXT_LOGIT + NUM_KINDS)
        gradient[ends] += np.bincount(kinds, slopes * base, NUM_KINDS)
    gradient[NUM_WEIGHTS] = 0
    return gradient, loss
