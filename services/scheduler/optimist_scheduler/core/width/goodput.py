"""Draft width by goodput: the drafts that bring the most tokens per time of the pass.

A row drafts the first nodes of its window, each with a chance of its own to be accepted, or levels
of the worker's drafter, each of which costs w tokens (a chain 1, a tree more) and is accepted with
chance a if those before it were. A pass emits one token per row and as many more in the mean as the
chances of its drafts add up to. It costs what a pass of so many tokens costs, and the time of the
drafter, which goes by the largest level that it drafts.

For a given largest level, drafts of a row fall in value, so the best ones of any total are those
with the highest values per token: all above one threshold that the rows share. What is left is a
search over thresholds, here over all drafts in the order of their worth, and over largest levels.

Where windows say how likely each node is, no search is needed: in the long run, tokens over time
are the most if each draft brings more than is brought on the average in the time that it takes
(Dinkelbach 1967). What it takes goes by the size of the pass, so each piece of the cost curve has a
threshold, and a pass takes the drafts above that of the piece in which it ends.

Goodput as the objective: SmartSpec / TurboSpec (arXiv 2406.14066). Off without gain, and probes to
find out when that changes: Cascade (arXiv 2506.20675).
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optimist_aligner.cost import HORIZON, CostCurve
from optimist_scheduler.core.base.values import (
    BoolArray,
    Float32Array,
    FloatArray,
    Int32Array,
    Int64Array,
)
from optimist_scheduler.core.width.acceptance import MIN_HAZARD, DrafterRows

MAX_DEPTH = 9.0
"""Deepest threshold that is tried: a draft with less than exp(-9) to bring is never worth it."""
LEAST_WORTH = math.exp(-MAX_DEPTH)
LEAST_SAVED = 0.001
"""Share of the drafter's time that a smaller largest level has to save to be tried."""


MIN_GAIN = 1.02
"""Drafts have to raise the goodput of a pass without drafts by this factor."""

_NO_LEVELS: Float32Array = np.empty((0, 0), np.float32)


class Prices:
    """What drafts cost: the tokens that passes bring on the average in the time that they take."""

    def __init__(
        self, rate: float, curve: CostCurve, key_ns: float = 0.0, mean_length: float = 0.0
    ) -> None:
        """Takes what is known at present.

        Args:
            rate: Tokens per nanosecond that passes bring on the average.
            curve: Time of a pass by its tokens, of rows whose lengths have a mean.
            key_ns: What a draft takes longer for each token that its row has more than that.
            mean_length: That mean, in tokens.
        """
        self._per_key, self._mean_length = rate * key_ns, mean_length
        self._tokens = [*map(int, curve.knots), HORIZON]
        self._costs = (curve.cost(self._tokens) * rate).tolist()
        points = zip(self._tokens, self._costs, strict=True)
        slopes = [_slope(*piece) for piece in pairwise(points)]
        self._dearest = max(slopes, default=0.0)
        """Cost of a token where it costs the most."""

    def find_price(self, num_tokens: int, num_drafts: int) -> float:
        """Returns the chance from which on one of the drafts of a pass is worth its time.

        Args:
            num_tokens: Tokens of the pass without drafts.
            num_drafts: Its drafts, at least one.
        """
        sizes = num_tokens, num_tokens + num_drafts
        plain, whole = np.interp(sizes, self._tokens, self._costs)
        return float(whole - plain) / num_drafts

    def is_worth(self, depth: float) -> bool:
        """Returns whether drafts above a threshold are worth it where tokens cost the most."""
        return bool(depth <= np.float32(_find_depths_of(self._dearest, None)))

    def choose_worth(
        self,
        num_tokens: int,
        most: Int32Array,
        count: Callable[[float | FloatArray], Int32Array],
        lengths: Int32Array | None = None,
    ) -> Int32Array:
        """Returns how many drafts of each row are worth their cost in a pass [num_rows].

        The curve counts as its lower convex hull from `num_tokens` on as far as there are drafts:
        to stop where tokens are dear is no good if they are cheap again after that.

        Args:
            num_tokens: Tokens of the pass without drafts.
            most: Drafts that each row has [num_rows].
            count: Returns how many of them are above a threshold, given its depth: minus the
                logarithm of the least chance, of all rows or of each [num_rows].
            lengths: Tokens of each row, which its drafts attend to; None: as in the mean
                [num_rows].
        """
        extra = None
        if lengths is not None and self._per_key:
            extra = self._per_key * (lengths.astype(np.float64) - self._mean_length)
        worth = count(_find_depths_of(self._dearest, extra))
        if worth is most or int(np.add.reduce(worth)) == (total := int(np.add.reduce(most))):
            return worth
        worth, start = most, num_tokens
        for end, slope in self._find_hull(num_tokens, num_tokens + total):
            before, worth = worth, count(_find_depths_of(slope, extra))
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

    def find(items: Items, draft_ns: float) -> Best:
        """Returns the best pass over all thresholds, the drafter taking a given time."""
        num_tokens = np.concatenate([[0.0], np.cumsum(items.weights)]) + base_tokens
        accepted = np.concatenate([[0.0], np.cumsum(items.values)])
        goodputs = (accepted + num_rows) / (curve.cost(num_tokens) + draft_ns)
        taken = int(goodputs.argmax())
        counts = np.bincount(items.rows[:taken], minlength=num_windows + num_served)
        return Best(
            counts,
            float(num_tokens[taken]),
            int(counts[num_windows:].max(initial=0)),
            float(goodputs[taken]),
        )

    if drafter is None or not num_served:
        return find(items, 0.0)
    is_level = items.rows >= num_windows
    deepest = int(drafter.limits.max(initial=0))
    return max(
        (
            find(items.select(~is_level | (items.levels <= most)), draft_ns)
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


class GoodputChoice(NamedTuple):
    """What rows may draft, as columns [num_rows]."""

    widths: Int32Array
    """Drafts of the window."""
    levels: Int32Array
    """Levels of the drafter."""


def choose_goodput(
    rates: npt.NDArray[np.floating],
    limits: Int32Array,
    drafting: BoolArray,
    base_tokens: int,
    curve: CostCurve,
    drafter: DrafterRows | None = None,
    hazards: Float32Array | None = None,
) -> GoodputChoice:
    """Chooses widths that maximise expected tokens over cost of the pass.

    Args:
        rates: Chance that a draft of the window is accepted, given those before it were [num_rows].
        limits: Most drafts of the window [num_rows].
        drafting: Whether a row has a window to draft from. One that has not drafts with the drafter
            if there is one, else it takes no part [num_rows].
        base_tokens: Tokens of the pass without drafts.
        curve: Time of a pass by its tokens.
        drafter: The drafter's rates, limits and costs, if there is one.
        hazards: Minus the logarithm of the chance of each draft, where more is known than a rate:
            never falling along a row, infinite beyond the window's end; NaN at the beginning of a
            row to go by its rate. By default all do [num_rows, most drafts].

    Returns:
        Drafts of the window per row and levels of the drafter, each 0 to its limit. What a row does
        not draft from at present is what would pay if the row were to join the others with it. All
        that take part get 0 where drafts would raise the goodput by less than 2 %.
    """
    num_rows = len(rates)
    widths, levels = np.zeros_like(limits), np.zeros_like(limits)
    best = _nothing(base_tokens, num_rows, curve)
    able = np.flatnonzero(drafting & (limits > 0))
    served = np.flatnonzero(~drafting & (drafter.limits > 0)) if drafter else able[:0]
    if len(able) or len(served):
        windows = _find_depths(rates, limits, hazards, able)
        of_drafter, weight = _NO_LEVELS, 1.0
        if drafter is not None and len(served):
            weight = drafter.tokens_per_level
            of_drafter = make_rows(
                drafter.rates[served], drafter.limits[served], weight
            ).find_depths()
        found = None if len(served) else _take_all(windows, base_tokens, curve, num_rows)
        if found is None:
            items = make_items(windows, of_drafter, weight)
            found = find_best(items, len(able), len(served), drafter, base_tokens, curve, num_rows)
        if found.goodput >= MIN_GAIN * best.goodput:
            best = found
            widths[able], levels[served] = found.counts[: len(able)], found.counts[len(able) :]
    absent = np.flatnonzero(~drafting & (limits > 0))
    if len(absent):
        joining = make_rows(rates[absent], limits[absent], 1.0)
        widths[absent] = _join(joining, best, curve)
    if drafter is not None:
        absent = np.flatnonzero(drafting & (drafter.limits > 0))
        if len(absent):
            levels[absent] = _join_drafter(absent, best, curve, drafter)
    return GoodputChoice(widths, levels)


def _nothing(base_tokens: int, num_rows: int, curve: CostCurve) -> Best:
    """Returns the pass without drafts."""
    goodput = num_rows / float(curve.cost(base_tokens))
    return Best(np.empty(0, np.int64), base_tokens, 0, goodput)


def _take_all(
    windows: Float32Array, base_tokens: int, curve: CostCurve, num_rows: int
) -> Best | None:
    """Returns the pass with all drafts of windows, if it is plain that no other one is better.

    That is so if each draft brings more than this pass does in the most time that a token takes:
    then those that a smaller pass lacks would raise its goodput.

    Args:
        windows: Minus the logarithm of the chance of each draft, infinite where there is none
            [num_windows, most drafts].
        base_tokens: Tokens of the pass without drafts.
        curve: Time of a pass by its tokens.
        num_rows: Rows that emit a token in any case.
    """
    is_draft = windows < np.inf
    deepest = float(windows.max(initial=0, where=is_draft))
    counts = np.count_nonzero(is_draft, axis=1)
    num_tokens = base_tokens + int(counts.sum())
    accepted = float(np.exp(-windows.astype(np.float64)).sum())
    goodput = (accepted + num_rows) / curve.cost_of(num_tokens)
    if deepest > MAX_DEPTH or math.exp(-deepest) <= goodput * curve.steepest:
        return None
    return Best(counts, num_tokens, 0, goodput)


def _find_depths(
    rates: npt.NDArray[np.floating],
    limits: Int32Array,
    hazards: Float32Array | None,
    able: Int64Array,
) -> Float32Array:
    """Returns minus the logarithm of each draft's chance, for the rows that are able to draft."""
    limits = limits[able]
    if hazards is None or not len(able):
        return make_rows(rates[able], limits, 1.0).find_depths()
    most = int(limits.max())
    own = hazards[able, :most]
    own[np.arange(most) >= limits[:, None]] = np.inf
    is_unknown = np.isnan(own[:, 0])
    if np.count_nonzero(is_unknown):
        others = make_rows(rates[able][is_unknown], limits[is_unknown], 1.0).find_depths()
        own[is_unknown] = np.inf
        own[is_unknown, : others.shape[1]] = others
    return own


def _join(rows: DraftRows, best: Best, curve: CostCurve) -> Int32Array:
    """Returns how many drafts would pay if one of the rows came to a pass.

    A draft pays if it brings more than the pass would have brought in the time that it takes.
    """
    added = curve.cost(best.num_tokens + rows.limits) - curve.cost(best.num_tokens)
    worth = np.maximum(best.goodput * added / rows.limits, LEAST_WORTH)
    depths = np.maximum(-np.log(worth), 0)
    widths: Int32Array = np.minimum(depths / rows.hazards, rows.limits).astype(np.int32)
    return widths


def _join_drafter(
    absent: Int64Array, best: Best, curve: CostCurve, drafter: DrafterRows
) -> Int32Array:
    """Returns the levels that would pay if one of the rows came and drafted with the drafter.

    The time of the drafter is paid up to the largest level of the pass already.
    """
    rows = make_rows(drafter.rates[absent], drafter.limits[absent], drafter.tokens_per_level)
    levels = np.arange(int(rows.limits.max()) + 1)
    added = curve.cost(best.num_tokens + levels * rows.weight) - curve.cost(best.num_tokens)
    added += drafter.cost(np.maximum(levels, best.deepest)) - drafter.cost(best.deepest)
    accepted = rows.scales[:, None] * -np.expm1(np.multiply.outer(-rows.hazards, levels))
    gains = accepted - best.goodput * added
    gains[levels > rows.limits[:, None]] = -np.inf
    most: Int32Array = gains.argmax(axis=1).astype(np.int32)
    return most
