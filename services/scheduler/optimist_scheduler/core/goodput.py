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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optimist_scheduler.core.arrays import BoolArray, Int32Array, Int64Array
from optimist_scheduler.core.cost import CostCurve
from optimist_scheduler.core.drafter import DrafterRows
from optimist_scheduler.core.threshold import MAX_DEPTH, DraftRows, find_levels, make_rows

MIN_GAIN = 1.02
"""Drafts have to raise the goodput of a pass without drafts by this factor."""

_NO_ROWS: Int64Array = np.empty(0, np.int64)


class _Pass(NamedTuple):
    """What a pass holds and brings."""

    num_tokens: float
    """Drafts included."""
    deepest: int
    """Largest level of the drafter."""
    goodput: float


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
    best = _Pass(base_tokens, 0, num_rows / float(curve.cost(base_tokens)))
    able, served = np.flatnonzero(drafting & (limits > 0)), _NO_ROWS
    kinds = [make_rows(rates[able], limits[able], 1.0)] if len(able) else []
    if drafter is not None:
        served = np.flatnonzero(~drafting & (drafter.limits > 0))
    if drafter is not None and len(served):
        weight = drafter.tokens_per_level
        kinds.append(make_rows(drafter.rates[served], drafter.limits[served], weight))
    if kinds:
        costs = drafter if len(served) else None
        found = find_levels(kinds, costs, base_tokens, curve, num_rows)
        passes = [_weigh(each, kinds, costs, base_tokens, curve, num_rows) for each in found]
        chosen = max(range(len(found)), key=lambda index: passes[index].goodput)
        if passes[chosen].goodput >= MIN_GAIN * best.goodput:
            best = passes[chosen]
            widths[able], levels[served] = np.split(found[chosen], [len(able)])
    absent = np.flatnonzero(~drafting & (limits > 0))
    if len(absent):
        joining = make_rows(rates[absent], limits[absent], 1.0)
        widths[absent] = _join(joining, best, curve)
    if drafter is not None:
        absent = np.flatnonzero(drafting & (drafter.limits > 0))
        if len(absent):
            levels[absent] = _join_drafter(absent, best, curve, drafter)
    return widths, levels


def _weigh(
    levels: Int32Array,
    kinds: list[DraftRows],
    drafter: DrafterRows | None,
    base_tokens: int,
    curve: CostCurve,
    num_rows: int,
) -> _Pass:
    """Returns what a pass with levels of all kinds, one after the other, brings [num_rows]."""
    tokens, emitted, start = float(base_tokens), float(num_rows), 0
    for rows in kinds:
        part = levels[start : start + len(rows.limits)]
        start += len(part)
        tokens += float(part.sum()) * rows.weight
        emitted += float(rows.expect(part).sum())
    ns, deepest = float(curve.cost(tokens)), 0
    if drafter is not None:
        deepest = int(part.max())
        ns += float(drafter.cost(deepest))
    return _Pass(tokens, deepest, emitted / ns)


def _join(rows: DraftRows, best: _Pass, curve: CostCurve) -> Int32Array:
    """Returns the widths that would pay if one of the rows came to a pass.

    A draft pays if it brings more than the pass would have brought in the time that it takes.
    """
    added = curve.cost(best.num_tokens + rows.limits) - curve.cost(best.num_tokens)
    worth = np.maximum(best.goodput * added / rows.limits, math.exp(-MAX_DEPTH))
    depths = np.maximum(-np.log(worth), 0)
    return np.minimum(depths / rows.hazards, rows.limits).astype(np.int32)


def _join_drafter(
    absent: Int64Array, best: _Pass, curve: CostCurve, drafter: DrafterRows
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
