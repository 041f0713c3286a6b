"""Who drafts for a row: its window, or a drafter with a model, which takes time of its own.

A drafter takes its time once for all rows that it drafts for, by the largest level of any. So they
are looked at together: what each has more with it than without has to exceed, in the sum, what
passes bring on the average in the drafter's time. A row with a window has what the window brings
without it.
"""

from typing import NamedTuple

import numpy as np

from optimist_scheduler.core.base.values import BoolArray, Float32Array, FloatArray, Int32Array


class DrafterChoice(NamedTuple):
    """What a drafter with a model does for rows, as columns [num_rows]."""

    levels: Int32Array
    """Levels that it drafts for the row where that drafts with it."""
    yields: BoolArray
    """Whether the row drafts with it though it has a window."""


def find_window_worth(hazards: Float32Array, price: float) -> FloatArray:
    """Returns what windows bring more than their drafts cost, in tokens [num_rows].

    Args:
        hazards: Minus the logarithm of the chance of each node, infinite where there is none
            [num_rows, most drafts].
        price: What a draft costs, in tokens.
    """
    worth: FloatArray = np.maximum(np.exp(-hazards) - price, 0).sum(axis=1, dtype=np.float64)
    return worth


def choose_drafter(
    rates: Float32Array,
    limits: Int32Array,
    has_window: BoolArray,
    window_worth: FloatArray,
    price: float,
    times: FloatArray,
) -> DrafterChoice:
    """Chooses how deep a drafter drafts for rows, and for which of those with a window.

    Args:
        rates: Chance that a level is accepted, given that those before it were [num_rows].
        limits: Most levels [num_rows].
        has_window: Whether a row has a window to draft from [num_rows].
        window_worth: What that brings, see `find_window_worth` [num_rows].
        price: What a level costs, in tokens.
        times: What passes bring in the time of the drafter, by the largest level from 1 on, in
            tokens [most levels].
    """
    levels = np.arange(1, len(times) + 1)
    chances = np.power(rates[:, None].astype(np.float64), levels) - price
    is_worth = (chances > 0) & (levels <= limits[:, None])
    worth = np.cumsum(chances * is_worth, axis=1)
    more = np.maximum(worth - (window_worth * has_window)[:, None], 0)
    together = more.sum(axis=0) - times
    most = int(together.argmax())
    counts = np.count_nonzero(is_worth, axis=1)
    if together[most] > 0:
        yields = has_window & (more[:, most] > 0)
        return DrafterChoice(np.minimum(counts, most + 1).astype(np.int32), yields)
    # A row that leaves its window before anybody knows may have the drafter to itself.
    alone = worth - times
    best = np.minimum(alone.argmax(axis=1) + 1, counts)
    levels_alone = best * (alone.max(axis=1) > 0) * has_window
    return DrafterChoice(levels_alone.astype(np.int32), np.zeros(len(rates), np.bool_))
