"""Draft width by goodput: the drafts that bring more than the time they take would bring.

A row drafts the first nodes of its window, each with a chance of its own to be accepted, or levels
of the worker's drafter, each of which costs w tokens (a chain 1, a tree more) and is accepted with
chance a if those before it were.

In the long run, tokens over time are the most if each draft brings more than is brought on the
average in the time that it takes (Dinkelbach 1967). What it takes goes by the size of the pass, so
each piece of the cost curve has a threshold, and a pass takes the drafts above that of the piece in
which it ends. The average is never taken to be less than what the rows of the pass would bring
without drafts: what is drafted is then no loss against none.

Goodput as the objective: SmartSpec / TurboSpec (arXiv 2406.14066). Off without gain, and probes to
find out when that changes: Cascade (arXiv 2506.20675).
"""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from optimist_aligner.cost import HORIZON, CostCurve
from optimist_scheduler.core.base.values import BoolArray, FloatArray, Int32Array
from optimist_scheduler.core.width.acceptance import DrafterRows

LEAST_WORTH = math.exp(-9)
"""A draft with less to bring is never worth it."""
LEAST_GAIN = 0.02
"""What the drafter has to bring more than its time would, as a part of what passes bring."""
LEAST_SAVED = 0.001
"""Share of the drafter's time that a smaller largest level has to save to be tried."""


class Prices:
    """What drafts cost: the time that they take, and what is brought in it without them."""

    def __init__(self, curve: CostCurve, key_ns: float = 0.0, mean_length: float = 0.0) -> None:
        """Takes what is known at present.

        Args:
            curve: Time of a pass by its tokens, of rows whose lengths have a mean.
            key_ns: What a draft takes longer for each token that its row has more than that.
            mean_length: That mean, in tokens.
        """
        self._curve, self._key_ns, self._mean_length = curve, key_ns, mean_length
        self._tokens = [*map(int, curve.knots), HORIZON]
        self._costs = curve.cost(self._tokens).tolist()
        self._steepest = curve.steepest

    def find_plain_rate(self, num_rows: int) -> float:
        """Returns the tokens per nanosecond of some rows without drafts."""
        return num_rows / self._curve.cost_of(num_rows)

    def find_price(self, rate: float, num_tokens: int, num_drafts: int) -> float:
        """Returns the chance from which on one of the drafts of a pass is worth its time.

        Args:
            rate: Tokens per nanosecond that passes bring.
            num_tokens: Tokens of the pass without drafts.
            num_drafts: Its drafts, at least one.
        """
        whole = self._curve.cost_of(num_tokens + num_drafts)
        return rate * (whole - self._curve.cost_of(num_tokens)) / num_drafts

    def choose_worth(
        self,
        rate: float,
        num_tokens: int,
        most: Int32Array,
        count: Callable[[float | FloatArray], Int32Array],
        lengths: Int32Array | None = None,
    ) -> Int32Array:
        """Returns how many drafts of each row are worth their cost in a pass [num_rows].

        The curve counts as its lower convex hull from `num_tokens` on as far as there are drafts:
        to stop where tokens are dear is no good if they are cheap again after that.

        Args:
            rate: Tokens per nanosecond that passes bring.
            num_tokens: Tokens of the pass without drafts.
            most: Drafts that each row has [num_rows].
            count: Returns how many of them are above a threshold, given its depth: minus the
                logarithm of the least chance, of all rows or of each [num_rows].
            lengths: Tokens of each row, which its drafts attend to; None: as in the mean
                [num_rows].
        """
        extra = None
        if lengths is not None and self._key_ns:
            extra = self._key_ns * rate * (lengths.astype(np.float64) - self._mean_length)
        worth = count(_find_depths_of(self._steepest * rate, extra))
        if worth is most or int(np.add.reduce(worth)) == (total := int(np.add.reduce(most))):
            return worth
        worth, start = most, num_tokens
        for end, slope in self._find_hull(num_tokens, num_tokens + total):
            before, worth = worth, count(_find_depths_of(slope * rate, extra))
            num_worth = int(np.add.reduce(worth))
            room = start - num_tokens - num_worth
            if room >= 0:
                # What fills the cheaper tokens before this piece pays, and nothing in it.
                more = before - worth
                worth = worth + np.clip(room - (np.cumsum(more) - more), 0, more).astype(np.int32)
                break
            if num_tokens + num_worth <= end:
                break
            start = end
        return worth

    def _find_hull(self, first: int, last: int) -> list[tuple[int, float]]:
        """Returns the pieces of the lower convex hull: their ends, and the cost of a token."""
        tokens = [first, *(knot for knot in self._tokens if first < knot < last), last]
        costs = np.interp(tokens, self._tokens, self._costs).tolist()
        hull: list[tuple[int, float]] = []
        for point in zip(tokens, costs, strict=True):
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
                hull.pop()
            hull.append(point)
        return [(end[0], _slope(start, end)) for start, end in pairwise(hull)]


def _find_depths_of(worth: float, extra: FloatArray | None) -> float | FloatArray:
    if extra is None:
        return -math.log(max(worth, LEAST_WORTH))
    depths: FloatArray = -np.log(np.maximum(worth + extra, LEAST_WORTH))
    return depths


def _slope(first: tuple[int, float], second: tuple[int, float]) -> float:
    return (second[1] - first[1]) / (second[0] - first[0])


def choose_levels(
    drafter: DrafterRows, served: BoolArray, rate: float, num_tokens: int, curve: CostCurve
) -> Int32Array:
    """Chooses levels of the drafter: those that bring more than the time they take.

    Levels of a row fall in value, so the best ones of any number are those above one threshold. The
    drafter takes its time once for all rows, so the largest level of the pass is tried out.

    Args:
        drafter: The drafter's rates, limits and costs.
        served: Rows that it drafts for [num_rows].
        rate: Tokens per nanosecond that passes bring.
        num_tokens: Tokens of the pass without its drafts.
        curve: Time of a pass by its tokens.

    Returns:
        Levels of each row, 0 to its limit; of rows that are not served, what they would get beside
        those that are, or if there are none the best of them alone [num_rows].
    """
    levels = np.arange(1, int(drafter.limits.max(initial=0)) + 1)
    if not len(levels):
        return np.zeros_like(drafter.limits)
    chances = np.power(drafter.rates[:, None].astype(np.float64), levels)
    chances[levels > drafter.limits[:, None]] = 0
    asked = chances[served] if np.count_nonzero(served) else chances[chances.sum(axis=1).argmax()]
    asked = np.atleast_2d(asked)
    sizes = num_tokens + drafter.tokens_per_level * np.arange(1, asked.size + 1)
    times = rate * (curve.cost(sizes) - curve.cost_of(num_tokens))
    draft_ns = drafter.cost(levels)
    # Largest levels that save hardly any time of the drafter need not be tried.
    is_tried = np.append(np.diff(draft_ns) > LEAST_SAVED * draft_ns[1:], True)
    most_gained, threshold, deepest = LEAST_GAIN * rate * curve.cost_of(num_tokens), np.inf, 0
    for level in levels[is_tried].tolist():
        values = np.sort(asked[:, :level], axis=None)[::-1]
        gains = values.cumsum() - times[: len(values)] - rate * draft_ns[level - 1]
        # Equal ones are all above a threshold, or none of them.
        gains[:-1][values[1:] == values[:-1]] = -np.inf
        best = int(gains.argmax())
        if gains[best] > most_gained:
            most_gained, threshold, deepest = gains[best], values[best], level
    is_chosen = chances[:, :deepest] >= threshold
    counts: Int32Array = np.count_nonzero(is_chosen, axis=1).astype(np.int32)
    return counts
