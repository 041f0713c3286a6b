"""Draft width all or nothing: the full width where that is faster than no drafts, else none."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.base.values import BoolArray, FloatArray, Int32Array, Int64Array
from optimist_scheduler.core.width.acceptance import DrafterRows, expected_accepted


@dataclass(frozen=True, slots=True, eq=False)
class Crossover:
    """What speculation brings, per case in the shape of the question's values."""

    avg_accepted: FloatArray
    """Mean number of accepted drafts a pass, without the bonus token."""
    speedup: FloatArray
    """Tokens per time with speculation over tokens per time without."""
    is_beneficial: BoolArray
    """Whether speculation is the faster one."""


def should_use_speculation(
    acceptance_rate: npt.ArrayLike,
    num_drafts: npt.ArrayLike,
    draft_latency: npt.ArrayLike,
    verify_latency: npt.ArrayLike,
    plain_latency: npt.ArrayLike,
) -> Crossover:
    """Compares passes that verify drafts with passes that do not.

    With K drafts, each accepted with chance a if those before it were, a pass emits
    1 + (a + a^2 + ... + a^K) tokens in K * draft_latency + verify_latency, against one token in
    plain_latency. So drafts pay when the mean number of accepted ones exceeds what the time grows
    by, relative to the plain pass.

    Args:
        acceptance_rate: a, 0 to 1.
        num_drafts: K.
        draft_latency: Time to make one draft; 0 for drafts that are there already.
        verify_latency: Time of a pass with K + 1 tokens, in the same unit.
        plain_latency: Time of a pass with one token, in the same unit.
    """
    avg_accepted = expected_accepted(acceptance_rate, num_drafts)
    latency = np.asarray(num_drafts) * np.asarray(draft_latency) + np.asarray(verify_latency)
    speedup = np.asarray((avg_accepted + 1) * np.asarray(plain_latency) / latency)
    return Crossover(avg_accepted, speedup, np.asarray(speedup > 1))


def choose_crossover(
    rates: npt.NDArray[np.floating],
    limits: Int32Array,
    drafting: BoolArray,
    base_tokens: int,
    curve: CostCurve,
    drafter: DrafterRows | None = None,
) -> tuple[Int32Array, Int32Array]:
    """Gives each row its limit if the row is faster with it, else 0.

    Rows share the pass, so a row is asked in a pass that also holds the drafts of all rows that
    gain more than it does, and the time of the drafter if that is among them. What is given is thus
    faster for each row it is given to. Where windows alone bring more in the time, the drafter has
    no part.

    Args:
        rates: Chance that a draft of the window is accepted [num_rows].
        limits: Most drafts of the window [num_rows].
        drafting: Whether a row has a window to draft from. One that has not drafts with the drafter
            if there is one, else it takes no part [num_rows].
        base_tokens: Tokens of the pass without drafts.
        curve: Time of a pass by its tokens.
        drafter: The drafter's rates, limits in levels and costs, if there is one.

    Returns:
        The limit or 0, of drafts of the window and of levels of the drafter. What a row does not
        draft from at present is what would be right if it alone were to join the others [num_rows].
    """
    plain = float(curve.cost(base_tokens))
    windows = _Options(rates, limits, limits.astype(np.float64), np.zeros(len(limits)))
    present = np.flatnonzero(drafting)
    given = _give(windows, present, base_tokens, curve, plain)
    if drafter is None:
        given = _give_alone(windows, given, np.flatnonzero(~drafting), base_tokens, curve, plain)
        return given, np.zeros_like(limits)
    num_rows = len(rates)
    # One row each for its window and for the drafter; either of them is there.
    options = _Options(
        np.concatenate([rates, drafter.rates]),
        np.concatenate([limits, drafter.limits]),
        np.concatenate([limits, drafter.limits * drafter.tokens_per_level]),
        np.concatenate([np.zeros(num_rows), drafter.cost(drafter.limits)]),
    )
    is_present = np.concatenate([drafting, ~drafting])
    alone = np.concatenate([given, np.zeros_like(limits)])
    both = _give(options, np.flatnonzero(is_present), base_tokens, curve, plain)
    best = max(both, alone, key=lambda each: _goodput(options, each, base_tokens, curve))
    best = _give_alone(options, best, np.flatnonzero(~is_present), base_tokens, curve, plain)
    return best[:num_rows], best[num_rows:]


class _Options(NamedTuple):
    """What rows may draft, as columns [num_options]."""

    rates: npt.NDArray[np.floating]
    limits: Int32Array
    """Levels."""
    num_tokens: FloatArray
    """Drafts that the levels cost."""
    draft_ns: FloatArray
    """Time of the drafter for the levels."""


def _give(
    options: _Options, present: Int64Array, base_tokens: int, curve: CostCurve, plain: float
) -> Int32Array:
    """Returns what those that are present get, the others nothing [num_options]."""
    given = np.zeros_like(options.limits)
    gains = expected_accepted(options.rates[present], options.limits[present])
    order = present[np.argsort(-gains, kind="stable")]
    latencies = curve.cost(base_tokens + np.cumsum(options.num_tokens[order]))
    if len(order):
        latencies = latencies + np.maximum.accumulate(options.draft_ns[order])
    crossover = should_use_speculation(
        options.rates[order], options.limits[order], 0.0, latencies, plain
    )
    given[order] = np.where(crossover.is_beneficial, options.limits[order], 0)
    return given


def _give_alone(
    options: _Options,
    given: Int32Array,
    absent: Int64Array,
    base_tokens: int,
    curve: CostCurve,
    plain: float,
) -> Int32Array:
    """Adds what those that are absent would get, each alone beside what is given."""
    gets = given > 0
    num_tokens = base_tokens + options.num_tokens[gets].sum()
    draft_ns = options.draft_ns[gets].max(initial=0)
    latencies = curve.cost(num_tokens + options.num_tokens[absent])
    latencies = latencies + np.maximum(options.draft_ns[absent], draft_ns)
    crossover = should_use_speculation(
        options.rates[absent], options.limits[absent], 0.0, latencies, plain
    )
    given[absent] = np.where(crossover.is_beneficial, options.limits[absent], 0)
    return given


def _goodput(options: _Options, given: Int32Array, base_tokens: int, curve: CostCurve) -> float:
    """Returns expected tokens per nanosecond of a pass; every other option is a row."""
    gets = given > 0
    num_emitted = len(given) / 2 + expected_accepted(options.rates, given).sum()
    ns = curve.cost(base_tokens + options.num_tokens[gets].sum())
    return float(num_emitted / (ns + options.draft_ns[gets].max(initial=0)))
