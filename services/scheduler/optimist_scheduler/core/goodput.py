"""Draft width by goodput: the drafts that bring the most tokens per time of the pass.

A row drafts n levels: drafts of its window, each a level, or levels of the worker's drafter, each
of which costs w tokens (a chain 1, a tree more). A pass of such rows emits sum over rows of
1 + a_i + a_i^2 + ... + a_i^n_i tokens in the mean. It costs what a pass of base_tokens + sum of
w_i n_i tokens costs, and the time of the drafter, which goes by the largest level that it drafts.

For a given largest level, the j-th level of a row adds a_i^j for w_i tokens, falling in j, so the
best levels of any total are those with the highest values per token: all above one threshold that
the rows share. What is left is a search over thresholds, here over their depth d = -log threshold:
n_i = floor((d - log w_i) / h_i) with the row's hazard h_i = -log a_i; and over largest levels.

Goodput as the objective: SmartSpec / TurboSpec (arXiv 2406.14066). Off without gain, and probes to
find out when that changes: Cascade (arXiv 2506.20675).
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optimist_scheduler.core.arrays import BoolArray, Float32Array, Int32Array, Int64Array
from optimist_scheduler.core.cost import CostCurve
from optimist_scheduler.core.drafter import DrafterRows

MIN_GAIN = 1.02
"""Drafts have to raise the goodput of a pass without drafts by this factor."""
MIN_HAZARD = 1 / 1024
"""No row is taken to be certain."""
MAX_DEPTH = 9.0
"""Deepest threshold that is tried: a draft with less than exp(-9) to bring is never worth it."""
NUM_DEPTHS = 48
"""Thresholds that are compared; with 32 one answer in 30 is more than 0.1 % off the best."""
LEAST_SAVED = 0.001
"""Share of the drafter's time that a smaller largest level has to save to be tried."""

# The first is replaced by 0, the second is the first depth at which a row gets a draft.
_SPACING = np.concatenate([[0], np.linspace(0, 1, NUM_DEPTHS - 1)]).astype(np.float32)
_NO_ROWS: Int64Array = np.empty(0, np.int64)


class _Rows(NamedTuple):
    """Rows of one kind with a limit above 0, as columns [num_rows]."""

    hazards: Float32Array
    limits: Float32Array
    scales: Float32Array
    """a / (1 - a): expected accepted drafts of an endless chain."""
    weight: float
    """Tokens per level."""


class _Passes(NamedTuple):
    """Passes of all rows, one per depth of the threshold, deeper and deeper."""

    levels: Float32Array
    """Of the rows of all kinds, one kind after the other [num_depths, num_rows]."""
    num_tokens: Float32Array
    """Drafts [num_depths]."""
    num_accepted: Float32Array
    """Expected accepted drafts [num_depths]."""
    draft_ns: float
    """Time of the drafter."""


class _Best(NamedTuple):
    """The best of some passes."""

    passes: _Passes
    goodput: float
    num_tokens: float
    """Drafts."""


def choose_goodput(
    rates: npt.NDArray[np.floating],
    limits: Int32Array,
    drafting: BoolArray,
    base_tokens: int,
    curve: CostCurve,
    drafter: DrafterRows | None = None,
) -> tuple[Int32Array, Int32Array]:
    """Chooses widths that maximise expected tokens over cost of the pass.

    Args:
        rates: Chance that a draft of the window is accepted, given those before it were [num_rows].
        limits: Most drafts of the window [num_rows].
        drafting: Whether a row has a window to draft from. One that has not drafts with the drafter
            if there is one, else it takes no part [num_rows].
        base_tokens: Tokens of the pass without drafts.
        curve: Time of a pass by its tokens.
        drafter: The drafter's rates, limits and costs, if there is one.

    Returns:
        Drafts of the window per row and levels of the drafter, each 0 to its limit. What a row does
        not draft from at present is what would pay if the row were to join the others with it. All
        that take part get 0 where drafts would raise the goodput by less than 2 % [num_rows].
    """
    num_rows = len(rates)
    widths, levels = np.zeros_like(limits), np.zeros_like(limits)
    num_tokens, deepest = float(base_tokens), 0
    goodput = num_rows / float(curve.cost(base_tokens))
    able, served = np.flatnonzero(drafting & (limits > 0)), _NO_ROWS
    kinds = [_make_rows(rates[able], limits[able], 1.0)] if len(able) else []
    if drafter is not None:
        served = np.flatnonzero(~drafting & (drafter.limits > 0))
        weight = drafter.tokens_per_level
        if len(served):
            kinds.append(_make_rows(drafter.rates[served], drafter.limits[served], weight))
    if kinds:
        best = _search(kinds, drafter if len(served) else None, base_tokens, curve, num_rows)
        found = _fill(best, kinds)
        drafted, accepted = _count(found, kinds)
        most = int(found[len(able) :].max(initial=0))
        ns = float(curve.cost(base_tokens + drafted))
        if drafter is not None:
            ns += float(drafter.cost(most))
        if (num_rows + accepted) / ns >= MIN_GAIN * goodput:
            goodput, num_tokens, deepest = (num_rows + accepted) / ns, base_tokens + drafted, most
            widths[able], levels[served] = found[: len(able)], found[len(able) :]
    absent = np.flatnonzero(~drafting & (limits > 0))
    if len(absent):
        joining = _make_rows(rates[absent], limits[absent], 1.0)
        widths[absent] = _join(joining, goodput, num_tokens, curve)
    if drafter is not None:
        absent = np.flatnonzero(drafting & (drafter.limits > 0))
        if len(absent):
            levels[absent] = _join_drafter(absent, goodput, num_tokens, deepest, curve, drafter)
    return widths, levels


def _make_rows(rates: npt.NDArray[np.floating], limits: Int32Array, weight: float) -> _Rows:
    floored = np.maximum(rates, 1e-9).astype(np.float32)
    hazards = np.maximum(-np.log(floored), np.float32(MIN_HAZARD))
    return _Rows(hazards, limits.astype(np.float32), 1 / np.expm1(hazards), weight)


def _search(
    kinds: list[_Rows],
    drafter: DrafterRows | None,
    base_tokens: int,
    curve: CostCurve,
    num_rows: int,
) -> _Best:
    """Returns the best passes over all largest levels of the drafter, whose rows come last."""
    depths = np.concatenate([_make_depths(rows) for rows in kinds])
    if len(kinds) > 1:
        depths.sort()
    levels = [_make_levels(rows, depths) for rows in kinds]
    if drafter is None:
        return _find_best(_make_passes(kinds, levels, 0.0), base_tokens, curve, num_rows)
    deepest = int(kinds[-1].limits.max())
    return max(
        (
            _find_best(
                _make_passes(kinds, [*levels[:-1], np.minimum(levels[-1], most)], draft_ns),
                base_tokens,
                curve,
                num_rows,
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


def _make_depths(rows: _Rows) -> Float32Array:
    """Returns depths from no drafts at all to all that are worth a try, geometric [num_depths]."""
    first = float(rows.hazards.min())
    offset = math.log(rows.weight)
    last = max(first, min(float((rows.hazards * rows.limits).max()), MAX_DEPTH - offset))
    depths: Float32Array = first * np.exp(_SPACING * np.float32(math.log(last / first)))
    depths += np.float32(offset)
    depths[0] = 0
    return depths


def _make_levels(rows: _Rows, depths: Float32Array) -> Float32Array:
    """Returns the levels of rows at depths of the threshold [num_depths, num_rows]."""
    offset = np.float32(math.log(rows.weight))
    # A hazard divides its own multiples; rounding must not make that one draft less.
    levels = np.multiply.outer(depths - offset, (1 + 1e-5) / rows.hazards)
    np.floor(levels, out=levels)
    clipped: Float32Array = np.clip(levels, 0, rows.limits, out=levels)
    return clipped


def _make_passes(kinds: list[_Rows], levels: list[Float32Array], draft_ns: float) -> _Passes:
    counts = [_count_all(rows, each) for rows, each in zip(kinds, levels, strict=True)]
    tokens, accepted = counts[0]
    for more_tokens, more_accepted in counts[1:]:
        tokens, accepted = tokens + more_tokens, accepted + more_accepted
    together = levels[0] if len(levels) == 1 else np.concatenate(levels, axis=1)
    return _Passes(together, tokens, accepted, draft_ns)


def _count_all(rows: _Rows, levels: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Returns drafts and expected accepted ones of rows at each depth [num_depths]."""
    beyond = levels * -rows.hazards
    np.exp(beyond, out=beyond)
    tokens = levels @ np.full_like(rows.limits, rows.weight)
    return tokens, rows.scales.sum() - beyond @ rows.scales


def _find_best(passes: _Passes, base_tokens: int, curve: CostCurve, num_rows: int) -> _Best:
    """Returns the best goodput and its drafts, at a depth or where a knot of the curve is reached.

    Between two depths the tokens are taken to grow in proportion, which is exact for rows of equal
    rates. There the goodput has no maximum except at knots.
    """
    knots = np.maximum(curve.knots - base_tokens, passes.num_tokens[0])
    knots = np.minimum(knots, passes.num_tokens[-1])
    num_tokens = np.concatenate([passes.num_tokens, knots])
    num_accepted = np.interp(num_tokens, passes.num_tokens, passes.num_accepted)
    ns = curve.cost(num_tokens + base_tokens) + passes.draft_ns
    goodputs = (num_accepted + num_rows) / ns
    best = goodputs.argmax()
    return _Best(passes, float(goodputs[best]), float(num_tokens[best]))


def _fill(best: _Best, kinds: list[_Rows]) -> Int32Array:
    """Returns levels with at most `best.num_tokens` drafts: a depth's, and of the next what fits.

    Rows with higher rates come first, so no row gets more than one that is accepted more often.
    """
    passes = best.passes
    index = int(passes.num_tokens.searchsorted(np.float32(best.num_tokens)))
    levels: Int32Array = passes.levels[index].astype(np.int32)
    surplus = float(passes.num_tokens[index]) - int(best.num_tokens)
    if surplus > 0 and index > 0:
        spare = levels - passes.levels[index - 1].astype(np.int32)
        hazards = np.concatenate([rows.hazards for rows in kinds])
        weights = np.concatenate([np.full_like(rows.limits, rows.weight) for rows in kinds])
        last_first = np.argsort(-hazards, kind="stable")
        tokens = (spare * weights)[last_first]
        left = surplus - (np.cumsum(tokens) - tokens)
        given_up = np.clip(np.ceil(left / weights[last_first]), 0, spare[last_first])
        levels[last_first] -= given_up.astype(np.int32)
    return levels


def _count(levels: Int32Array, kinds: list[_Rows]) -> tuple[float, float]:
    """Returns the drafts of one pass, and the expected accepted ones."""
    tokens, accepted, start = 0.0, 0.0, 0
    for rows in kinds:
        part = levels[start : start + len(rows.limits)]
        start += len(part)
        tokens += float(part.sum()) * rows.weight
        accepted += float((rows.scales * -np.expm1(part * -rows.hazards)).sum())
    return tokens, accepted


def _join(rows: _Rows, goodput: float, num_tokens: float, curve: CostCurve) -> Int32Array:
    """Returns the widths that would pay if one of the rows came to a pass of `num_tokens` tokens.

    A draft pays if it brings more than the pass would have brought in the time that it takes.
    """
    added = curve.cost(num_tokens + rows.limits) - curve.cost(num_tokens)
    worth = np.maximum(goodput * added / rows.limits, math.exp(-MAX_DEPTH))
    depths = np.maximum(-np.log(worth), 0)
    return np.minimum(depths / rows.hazards, rows.limits).astype(np.int32)


def _join_drafter(
    absent: Int64Array,
    goodput: float,
    num_tokens: float,
    deepest: int,
    curve: CostCurve,
    drafter: DrafterRows,
) -> Int32Array:
    """Returns the levels that would pay if one of the rows came and drafted with the drafter.

    The time of the drafter is paid up to the largest level of the pass, `deepest`, already.
    """
    rows = _make_rows(drafter.rates[absent], drafter.limits[absent], drafter.tokens_per_level)
    levels = np.arange(int(rows.limits.max()) + 1)
    added = curve.cost(num_tokens + levels * rows.weight) - curve.cost(num_tokens)
    added += drafter.cost(np.maximum(levels, deepest)) - drafter.cost(deepest)
    accepted = rows.scales[:, None] * -np.expm1(np.multiply.outer(-rows.hazards, levels))
    gains = np.where(levels <= rows.limits[:, None], accepted - goodput * added, -np.inf)
    best: Int32Array = gains.argmax(axis=1).astype(np.int32)
    return best
