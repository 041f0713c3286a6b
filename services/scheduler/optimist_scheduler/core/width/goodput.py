"""Goodput: the drafts that bring more than the time they take would bring.

In the long run, tokens over time are the most if each draft brings more than is brought on the
average in the time that it takes (Dinkelbach 1967). What it takes goes by the size of the pass, so
each piece of the cost curve has a threshold, the least chance of a draft that pays, and a pass
takes the drafts above that of the piece in which it ends. The average is never taken to be less
than what the rows of the pass would bring without drafts: what is drafted is no loss against none.

Goodput as the objective: SmartSpec / TurboSpec (arXiv 2406.14066). Off without gain, and probes to
find out when that changes: Cascade (arXiv 2506.20675).
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optimist_aligner.cost import HORIZON, CostCurve
from optimist_scheduler.core.base.values import BoolArray, Float32Array, FloatArray, Int32Array

LEAST_THRESHOLD = math.exp(-9)
"""A draft that is less likely never pays."""
LEAST_GAIN = 0.02
"""What the drafter has to bring more than its time would, as a part of what passes bring."""
LEAST_SAVED = 0.001
"""Share of the drafter's time that a smaller largest level has to save to be tried."""


class Thresholds:
    """From which chance on drafts pay, by the time that they take and what it brings otherwise.

    `rate` is always the tokens per nanosecond that passes bring, and `num_tokens` what a pass has
    without drafts.
    """

    def __init__(self, curve: CostCurve, key_ns: float = 0.0, mean_length: float = 0.0) -> None:
        """Takes the time of a pass by its tokens, of rows whose lengths have a mean.

        A draft takes `key_ns` longer for each token that its row has more than that.
        """
        self._curve, self._key_ns, self._mean_length = curve, key_ns, mean_length
        self._tokens = [*map(int, curve.knots), HORIZON]
        self._costs = curve.cost(self._tokens).tolist()
        self._steepest = curve.steepest

    def find_plain_rate(self, num_rows: int) -> float:
        """Returns the tokens per nanosecond of some rows without drafts."""
        return num_rows / self._curve.cost_of(num_rows)

    def find(self, rate: float, num_tokens: int, num_drafts: int) -> float:
        """Returns the threshold of a pass with so many drafts, at least one."""
        whole = self._curve.cost_of(num_tokens + num_drafts)
        return rate * (whole - self._curve.cost_of(num_tokens)) / num_drafts

    def choose(
        self,
        rate: float,
        num_tokens: int,
        most: Int32Array,
        count: Callable[[float | FloatArray], Int32Array],
        lengths: Int32Array | None = None,
    ) -> Int32Array:
        """Returns how many drafts of each row pay in one pass, of the most that it has [num_rows].

        The curve counts as its lower convex hull from `num_tokens` on as far as there are drafts:
        to stop where tokens are dear is no good if they are cheap again after that.

        `count` returns how many of them have at most a given hazard, of all rows or of each;
        `lengths` are the tokens of each row, which its drafts attend to, None as in the mean.
        """
        extra = None
        if lengths is not None and self._key_ns:
            extra = self._key_ns * rate * (lengths.astype(np.float64) - self._mean_length)
        paying = count(_hazards_of(self._steepest * rate, extra))
        if paying is most or int(np.add.reduce(paying)) == (total := int(np.add.reduce(most))):
            return paying
        paying, start = most, num_tokens
        for end, slope in self._find_hull(num_tokens, num_tokens + total):
            before, paying = paying, count(_hazards_of(slope * rate, extra))
            num_paying = int(np.add.reduce(paying))
            room = start - num_tokens - num_paying
            if room >= 0:
                # What fills the cheaper tokens before this piece pays, and nothing in it.
                more = before - paying
                filled = np.clip(room - (np.cumsum(more) - more), 0, more).astype(np.int32)
                paying = paying + filled
                break
            if num_tokens + num_paying <= end:
                break
            start = end
        return paying

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


def _hazards_of(threshold: float, extra: FloatArray | None) -> float | FloatArray:
    if extra is None:
        return -math.log(max(threshold, LEAST_THRESHOLD))
    hazards: FloatArray = -np.log(np.maximum(threshold + extra, LEAST_THRESHOLD))
    return hazards


def _slope(first: tuple[int, float], second: tuple[int, float]) -> float:
    return (second[1] - first[1]) / (second[0] - first[0])


class DrafterRows(NamedTuple):
    """What a choice of levels has to know of the drafter."""

    rates: npt.NDArray[np.floating]
    """Chance that a level is accepted, given that those before it were [num_rows]."""
    limits: Int32Array
    """Most levels [num_rows]."""
    tokens_per_level: float
    curve: CostCurve
    """Time of the drafter by the largest level of a pass, however many rows it drafts for."""

    def cost(self, levels: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Returns the time in nanoseconds that the drafter takes for passes of so many levels."""
        levels = np.asarray(levels)
        return np.where(levels > 0, self.curve.cost(levels), 0.0)


def choose_levels(
    drafter: DrafterRows, served: BoolArray, rate: float, num_tokens: int, curve: CostCurve
) -> Int32Array:
    """Chooses levels of the drafter for rows, of which it drafts for those that are `served`.

    Levels of a row fall in value, so the best ones of any number are those above one threshold. The
    drafter takes its time once for all rows, so the largest level of the pass is tried out.

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
        ordered = np.sort(asked[:, :level], axis=None)[::-1]
        gains = ordered.cumsum() - times[: len(ordered)] - rate * draft_ns[level - 1]
        # Equal ones are all above a threshold, or none of them.
        gains[:-1][ordered[1:] == ordered[:-1]] = -np.inf
        best = int(gains.argmax())
        if gains[best] > most_gained:
            most_gained, threshold, deepest = gains[best], ordered[best], level
    is_chosen = chances[:, :deepest] >= threshold
    counts: Int32Array = np.count_nonzero(is_chosen, axis=1).astype(np.int32)
    return counts


def choose_drafter(
    drafter: DrafterRows,
    has_window: BoolArray,
    hazards: Float32Array,
    threshold: float,
    times: FloatArray,
) -> tuple[Int32Array, BoolArray]:
    """Chooses how deep a drafter with a model drafts for rows, and which windows yield to it.

    The drafter takes its time once for all rows, by the largest level of any. So they are looked at
    together: what each has more with it than without has to exceed, in the sum, what passes bring
    in the drafter's time. A row with a window has what that brings without it.

    Args:
        drafter: Its rates and limits.
        has_window: Whether a row has a window to draft from [num_rows].
        hazards: Of each node of that, cumulated, infinite where there is none [num_rows, most].
        threshold: What a draft costs, in tokens.
        times: What passes bring in the time of the drafter, by the largest level from 1 on, in
            tokens [most levels].

    Returns:
        Levels of each row where it drafts with the drafter, and whether it does though it has a
        window [num_rows].
    """
    of_windows = np.maximum(np.exp(-hazards) - threshold, 0).sum(axis=1, dtype=np.float64)
    levels = np.arange(1, len(times) + 1)
    chances = np.power(drafter.rates[:, None].astype(np.float64), levels)
    chances -= threshold * drafter.tokens_per_level
    pays = (chances > 0) & (levels <= drafter.limits[:, None])
    gains = np.cumsum(chances * pays, axis=1)
    more = np.maximum(gains - (of_windows * has_window)[:, None], 0)
    together = more.sum(axis=0) - times
    most = int(together.argmax())
    counts = np.count_nonzero(pays, axis=1)
    if together[most] > 0:
        yields = has_window & (more[:, most] > 0)
        return np.minimum(counts, most + 1).astype(np.int32), yields
    # A row that leaves its window before anybody knows may have the drafter to itself.
    alone = gains - times
    best = np.minimum(alone.argmax(axis=1) + 1, counts)
    levels_alone = best * (alone.max(axis=1) > 0) * has_window
    return levels_alone.astype(np.int32), np.zeros(len(drafter.rates), np.bool_)
