"""The search for the levels of rows that are worth most in a pass, by a threshold on their value.

What is searched, and why a threshold finds it: see `goodput.py`.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optimist_scheduler.core.arrays import Float32Array, Int32Array
from optimist_scheduler.core.cost import CostCurve
from optimist_scheduler.core.drafter import DrafterRows

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
_ROUNDING = 1e-3
"""Of tokens, which are 1.5 to a level of some trees."""


class DraftRows(NamedTuple):
    """Rows of one kind with a limit above 0, as columns [num_rows]."""

    hazards: Float32Array
    limits: Float32Array
    scales: Float32Array
    """a / (1 - a): expected accepted drafts of an endless chain."""
    weight: float
    """Tokens per level."""

    def expect(self, levels: npt.NDArray[np.integer]) -> npt.NDArray[np.floating]:
        """Returns the mean number of accepted levels [..., num_rows]."""
        expected: npt.NDArray[np.floating] = self.scales * -np.expm1(levels * -self.hazards)
        return expected


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


def make_rows(rates: npt.NDArray[np.floating], limits: Int32Array, weight: float) -> DraftRows:
    """Makes rows from the chances that levels are accepted, and the most of them."""
    floored = np.maximum(rates, 1e-9).astype(np.float32)
    hazards = np.maximum(-np.log(floored), np.float32(MIN_HAZARD))
    return DraftRows(hazards, limits.astype(np.float32), 1 / np.expm1(hazards), weight)


def find_levels(
    kinds: list[DraftRows],
    drafter: DrafterRows | None,
    base_tokens: int,
    curve: CostCurve,
    num_rows: int,
) -> list[Int32Array]:
    """Returns the levels that seem best, and where levels have many tokens some like them.

    Args:
        kinds: The rows, the drafter's last.
        drafter: What these cost, if there are any.
        base_tokens: Tokens of the pass without drafts.
        curve: Time of a pass by its tokens.
        num_rows: Rows that emit a token in any case.
    """
    best = _search(kinds, drafter, base_tokens, curve, num_rows)
    passes = best.passes
    index = int(passes.num_tokens.searchsorted(np.float32(best.num_tokens)))
    filled = _fill(best, index, kinds)
    if kinds[-1].weight == 1:
        return [filled]
    # A part of a level cannot be left out.
    near = passes.levels[max(index - 1, 0) : index + 1].astype(np.int32)
    return [filled, *near]


def _search(
    kinds: list[DraftRows],
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


def _make_depths(rows: DraftRows) -> Float32Array:
    """Returns depths from no drafts at all to all that are worth a try, geometric [num_depths]."""
    first = float(rows.hazards.min())
    offset = math.log(rows.weight)
    last = max(first, min(float((rows.hazards * rows.limits).max()), MAX_DEPTH - offset))
    depths: Float32Array = first * np.exp(_SPACING * np.float32(math.log(last / first)))
    depths += np.float32(offset)
    depths[0] = 0
    return depths


def _make_levels(rows: DraftRows, depths: Float32Array) -> Float32Array:
    """Returns the levels of rows at depths of the threshold [num_depths, num_rows]."""
    offset = np.float32(math.log(rows.weight))
    # A hazard divides its own multiples; rounding must not make that one draft less.
    levels = np.multiply.outer(depths - offset, (1 + 1e-5) / rows.hazards)
    np.floor(levels, out=levels)
    clipped: Float32Array = np.clip(levels, 0, rows.limits, out=levels)
    return clipped


def _make_passes(kinds: list[DraftRows], levels: list[Float32Array], draft_ns: float) -> _Passes:
    counts = [_count_all(rows, each) for rows, each in zip(kinds, levels, strict=True)]
    tokens, accepted = counts[0]
    for more_tokens, more_accepted in counts[1:]:
        tokens, accepted = tokens + more_tokens, accepted + more_accepted
    together = levels[0] if len(levels) == 1 else np.concatenate(levels, axis=1)
    return _Passes(together, tokens, accepted, draft_ns)


def _count_all(rows: DraftRows, levels: Float32Array) -> tuple[Float32Array, Float32Array]:
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


def _fill(best: _Best, index: int, kinds: list[DraftRows]) -> Int32Array:
    """Returns levels with at most `best.num_tokens` drafts: a depth's, and of the next what fits.

    Rows with higher rates come first, so no row gets more than one that is accepted more often.
    """
    passes = best.passes
    levels: Int32Array = passes.levels[index].astype(np.int32)
    surplus = float(passes.num_tokens[index]) - best.num_tokens
    if surplus > _ROUNDING:
        spare = levels - passes.levels[index - 1].astype(np.int32)
        hazards = np.concatenate([rows.hazards for rows in kinds])
        weights = np.concatenate([np.full_like(rows.limits, rows.weight) for rows in kinds])
        last_first = np.argsort(-hazards, kind="stable")
        tokens = (spare * weights)[last_first]
        left = surplus - (np.cumsum(tokens) - tokens)
        given_up = np.clip(np.ceil(left / weights[last_first]), 0, spare[last_first])
        levels[last_first] -= given_up.astype(np.int32)
    return levels
