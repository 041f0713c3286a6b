"""The drafts that are worth most in a pass: all whose value per token is above a threshold.

Why a threshold finds them: see `goodput.py`.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.values.arrays import (
    BoolArray,
    Float32Array,
    FloatArray,
    Int32Array,
    Int64Array,
)
from optimist_scheduler.core.width.drafter import DrafterRows

MIN_HAZARD = 1 / 1024
"""No row is taken to be certain."""
MAX_DEPTH = 9.0
"""Deepest threshold that is tried: a draft with less than exp(-9) to bring is never worth it."""
LEAST_SAVED = 0.001
"""Share of the drafter's time that a smaller largest level has to save to be tried."""


class DraftRows(NamedTuple):
    """Rows whose levels are each as likely as the one before, as columns [num_rows]."""

    hazards: Float32Array
    limits: Int32Array
    scales: Float32Array
    """a / (1 - a): expected accepted drafts of an endless chain."""
    weight: float
    """Tokens per level."""

    def find_depths(self) -> Float32Array:
        """Returns minus the logarithm of each level's chance, infinite beyond the limit.

        [num_rows, most levels]
        """
        levels = np.arange(1, int(self.limits.max(initial=0)) + 1, dtype=np.float32)
        depths = np.multiply.outer(self.hazards, levels)
        depths[levels > self.limits[:, None]] = np.inf
        return depths


def make_rows(rates: npt.NDArray[np.floating], limits: Int32Array, weight: float) -> DraftRows:
    """Makes rows from the chances that levels are accepted, and the most of them."""
    floored = np.maximum(rates, 1e-9).astype(np.float32)
    hazards = np.maximum(-np.log(floored), np.float32(MIN_HAZARD))
    return DraftRows(hazards, limits, 1 / np.expm1(hazards), weight)


class Items(NamedTuple):
    """Drafts that may be part of a pass, the most worth per token first, as columns [num_items].

    Those of a row come in their order.
    """

    rows: Int64Array
    """Which row each is of; those of the drafter come after those of windows."""
    levels: Int64Array
    """From 1 on."""
    depths: Float32Array
    """Minus the logarithm of the worth per token."""
    values: FloatArray
    """Chance that it is accepted."""
    weights: FloatArray
    """Tokens."""

    def select(self, chosen: BoolArray | Int64Array) -> "Items":
        """Returns the items that a mask chooses, or some by their indices."""
        rows, levels, depths, values, weights = self
        return Items(rows[chosen], levels[chosen], depths[chosen], values[chosen], weights[chosen])


class Best(NamedTuple):
    """The best pass that was found."""

    counts: Int64Array
    """Levels of each row [num_rows]."""
    num_tokens: float
    """Drafts included."""
    deepest: int
    """Largest level of the drafter."""
    goodput: float
    least: float
    """Depth of the last item that is in it."""
    next: float
    """Depth of the first one that is not; infinite if all are."""


def make_items(windows: Float32Array, levels: Float32Array, weight: float) -> Items:
    """Returns the drafts of all rows.

    Args:
        windows: Minus the logarithm of the chance of each draft of a window, never falling along
            a row, infinite where there is none [num_windows, most drafts].
        levels: The same of the drafter's levels [num_served, most levels].
        weight: Tokens of such a level.
    """
    first, second = windows <= MAX_DEPTH, levels + math.log(weight) <= MAX_DEPTH
    (rows, indexes), (more_rows, more_indexes) = np.nonzero(first), np.nonzero(second)
    depths = np.concatenate([windows[first], levels[second]])
    weights = np.ones(len(depths))
    weights[len(rows) :] = weight
    values = np.exp(-depths.astype(np.float64))
    depths[len(rows) :] += np.float32(math.log(weight))
    items = Items(
        np.concatenate([rows, more_rows + len(windows)]),
        np.concatenate([indexes, more_indexes]) + 1,
        depths,
        values,
        weights,
    )
    return items.select(np.argsort(depths, kind="stable"))


def find_best(
    items: Items,
    num_windows: int,
    num_served: int,
    drafter: DrafterRows | None,
    base_tokens: int,
    curve: CostCurve,
    num_rows: int,
) -> Best:
    """Returns the best pass over all thresholds, and over all largest levels of the drafter.

    Args:
        items: The drafts.
        num_windows: Rows that draft from windows.
        num_served: Rows that the drafter drafts for.
        drafter: What it costs, if there are any.
        base_tokens: Tokens of the pass without drafts.
        curve: Time of a pass by its tokens.
        num_rows: Rows that emit a token in any case.
    """
    if drafter is None or not num_served:
        return _find_best(items, num_windows, 0.0, base_tokens, curve, num_rows)
    is_level = items.rows >= num_windows
    deepest = int(drafter.limits.max(initial=0))
    return max(
        (
            _find_best(
                items.select(~is_level | (items.levels <= most)),
                num_windows,
                draft_ns,
                base_tokens,
                curve,
                num_rows,
                num_served,
            )
            for most, draft_ns in _largest_levels(drafter, deepest)
        ),
        key=lambda best: best.goodput,
    )


def _largest_levels(drafter: DrafterRows, deepest: int) -> Iterator[tuple[int, float]]:
    """Iterates over the largest levels worth a try, none among them, with the drafter's times."""
    times = drafter.cost(np.arange(deepest + 1)).tolist()
    for most, ns in enumerate(times):
        if most == deepest or times[most + 1] - ns > LEAST_SAVED * times[most + 1]:
            yield most, ns


def _find_best(
    items: Items,
    num_windows: int,
    draft_ns: float,
    base_tokens: int,
    curve: CostCurve,
    num_rows: int,
    num_served: int = 0,
) -> Best:
    """Returns the best pass over all thresholds, the drafter taking a given time."""
    num_tokens = np.concatenate([[0.0], np.cumsum(items.weights)]) + base_tokens
    accepted = np.concatenate([[0.0], np.cumsum(items.values)])
    goodputs = (accepted + num_rows) / (curve.cost(num_tokens) + draft_ns)
    taken = int(goodputs.argmax())
    counts = np.bincount(items.rows[:taken], minlength=num_windows + num_served)
    levels = counts[num_windows:]
    return Best(
        counts,
        float(num_tokens[taken]),
        int(levels.max(initial=0)),
        float(goodputs[taken]),
        float(items.depths[taken - 1]) if taken else 0.0,
        float(items.depths[taken]) if taken < len(items.depths) else math.inf,
    )
