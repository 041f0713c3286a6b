"""Draft width by goodput: the drafts that bring the most tokens per time of the pass.

A pass of rows with widths n_i emits sum over rows of 1 + a_i + a_i^2 + ... + a_i^n_i tokens in the
mean and costs what a pass of base_tokens + sum of n_i tokens costs. The j-th draft of a row adds
a_i^j, falling in j, so the best drafts of any total are those with the highest values: all above
one threshold that the rows share. What is left is a search over thresholds, here over their
depth d = -log threshold: n_i = floor(d / h_i) with the row's hazard h_i = -log a_i.

Goodput as the objective: SmartSpec / TurboSpec (arXiv 2406.14066). Off without gain, and probes to
find out when that changes: Cascade (arXiv 2506.20675).
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optimist_scheduler.core.arrays import BoolArray, Float32Array, Int32Array
from optimist_scheduler.core.cost import CostCurve

MIN_GAIN = 1.02
"""Drafts have to raise the goodput of a pass without drafts by this factor."""
MIN_HAZARD = 1 / 1024
"""No row is taken to be certain."""
MAX_DEPTH = 9.0
"""Deepest threshold that is tried: a draft with less than exp(-9) to bring is never worth it."""
NUM_DEPTHS = 48
"""Thresholds that are compared; with 32 one answer in 30 is more than 0.1 % off the best."""

# The first is replaced by 0, the second is the first depth at which a row gets a draft.
_SPACING = np.concatenate([[0], np.linspace(0, 1, NUM_DEPTHS - 1)]).astype(np.float32)


class _Rows(NamedTuple):
    """Rows with a limit above 0, as columns [num_rows]."""

    hazards: Float32Array
    limits: Float32Array
    scales: Float32Array
    """a / (1 - a): expected accepted drafts of an endless chain."""


class _Passes(NamedTuple):
    """Passes of all rows, one per depth of the threshold, deeper and deeper."""

    widths: Float32Array
    """[num_depths, num_rows]"""
    num_drafts: Float32Array
    """[num_depths]"""
    num_accepted: Float32Array
    """Expected accepted drafts [num_depths]."""


def choose_goodput(
    rates: npt.NDArray[np.floating],
    limits: Int32Array,
    drafting: BoolArray,
    base_tokens: int,
    curve: CostCurve,
) -> Int32Array:
    """Chooses widths that maximise expected tokens over cost of the pass.

    Args:
        rates: Chance that a draft is accepted, given those before it were [num_rows].
        limits: Most drafts [num_rows].
        drafting: Whether a row has something to draft from. One that has not takes no part; its
            width is what would pay if it were to join the others [num_rows].
        base_tokens: Tokens of the pass without drafts.
        curve: Time of a pass by its tokens.

    Returns:
        Drafts per row, 0 to its limit; 0 for all that take part where their drafts would raise the
        goodput by less than 2 % [num_rows].
    """
    num_rows = len(rates)
    widths = np.zeros_like(limits)
    able = np.flatnonzero(drafting & (limits > 0))
    goodput = num_rows / float(curve.cost(base_tokens))
    if len(able) > 0:
        rows = _make_rows(rates[able], limits[able])
        passes = _make_passes(rows, _make_depths(rows))
        best, num_drafts = _find_best(passes, base_tokens, curve, num_rows)
        if best >= MIN_GAIN * goodput:
            goodput = best
            widths[able] = _fill(passes, num_drafts, rows)
    absent = np.flatnonzero(~drafting & (limits > 0))
    if len(absent) > 0:
        rows = _make_rows(rates[absent], limits[absent])
        widths[absent] = _join(rows, goodput, base_tokens + int(widths.sum()), curve)
    return widths


def _make_rows(rates: npt.NDArray[np.floating], limits: Int32Array) -> _Rows:
    floored = np.maximum(rates, 1e-9).astype(np.float32)
    hazards = np.maximum(-np.log(floored), np.float32(MIN_HAZARD))
    return _Rows(hazards, limits.astype(np.float32), 1 / np.expm1(hazards))


def _make_depths(rows: _Rows) -> Float32Array:
    """Returns depths from no drafts at all to all that are worth a try, geometric [num_depths]."""
    first = float(rows.hazards.min())
    last = max(first, min(float((rows.hazards * rows.limits).max()), MAX_DEPTH))
    depths: Float32Array = first * np.exp(_SPACING * np.float32(math.log(last / first)))
    depths[0] = 0
    return depths


def _make_passes(rows: _Rows, depths: Float32Array) -> _Passes:
    # A hazard divides its own multiples; rounding must not make that one draft less.
    widths = np.multiply.outer(depths, (1 + 1e-5) / rows.hazards)
    np.floor(widths, out=widths)
    np.minimum(widths, rows.limits, out=widths)
    beyond = widths * -rows.hazards
    np.exp(beyond, out=beyond)
    return _Passes(
        widths, widths @ np.ones_like(rows.limits), rows.scales.sum() - beyond @ rows.scales
    )


def _find_best(
    passes: _Passes, base_tokens: int, curve: CostCurve, num_rows: int
) -> tuple[float, float]:
    """Returns the best goodput and its drafts, at a depth or where a knot of the curve is reached.

    Between two depths the tokens are taken to grow in proportion, which is exact for rows of equal
    rates. There the goodput has no maximum except at knots.
    """
    knots = np.maximum(curve.knots - base_tokens, passes.num_drafts[0])
    knots = np.minimum(knots, passes.num_drafts[-1])
    num_drafts = np.concatenate([passes.num_drafts, knots])
    num_accepted = np.interp(num_drafts, passes.num_drafts, passes.num_accepted)
    goodputs = (num_accepted + num_rows) / curve.cost(num_drafts + base_tokens)
    best = goodputs.argmax()
    return float(goodputs[best]), float(num_drafts[best])


def _fill(passes: _Passes, num_drafts: float, rows: _Rows) -> Int32Array:
    """Returns widths with `num_drafts` in total: a depth's, and of the next one what still fits.

    Rows with higher rates come first, so no row gets more than one that is accepted more often.
    """
    index = int(passes.num_drafts.searchsorted(num_drafts))
    widths: Int32Array = passes.widths[index].astype(np.int32)
    surplus = int(passes.num_drafts[index]) - int(num_drafts)
    if surplus > 0:
        spare = widths - passes.widths[index - 1].astype(np.int32)
        last_first = np.argsort(-rows.hazards, kind="stable")
        given_up = spare[last_first]
        given_up = np.clip(surplus - (np.cumsum(given_up) - given_up), 0, given_up)
        widths[last_first] -= given_up.astype(np.int32)
    return widths


def _join(rows: _Rows, goodput: float, num_tokens: int, curve: CostCurve) -> Int32Array:
    """Returns the widths that would pay if one of the rows came to a pass of `num_tokens` tokens.

    A draft pays if it brings more than the pass would have brought in the time that it takes.
    """
    added = curve.cost(num_tokens + rows.limits) - curve.cost(num_tokens)
    worth = np.maximum(goodput * added / rows.limits, math.exp(-MAX_DEPTH))
    depths = np.maximum(-np.log(worth), 0)
    return np.minimum(depths / rows.hazards, rows.limits).astype(np.int32)
