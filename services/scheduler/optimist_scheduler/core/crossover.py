"""Draft width all or nothing: the full width where that is faster than no drafts, else none."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimist_scheduler.core.acceptance import expected_accepted
from optimist_scheduler.core.arrays import BoolArray, FloatArray, Int32Array
from optimist_scheduler.core.cost import CostCurve


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
) -> Int32Array:
    """Gives each row its limit if the row is faster with it, else 0.

    Rows share the pass, so a row is asked in a pass that also holds the drafts of all rows that
    gain more than it does. What is given is thus faster for each row it is given to.

    Args:
        rates: Chance that a draft is accepted [num_rows].
        limits: Most drafts [num_rows].
        drafting: Whether a row has something to draft from. One that has not takes no part; its
            width is what would be right if it alone were to join the others [num_rows].
        base_tokens: Tokens of the pass without drafts.
        curve: Time of a pass by its tokens.

    Returns:
        The limit or 0 [num_rows].
    """
    widths = np.zeros_like(limits)
    plain = curve.cost(base_tokens)
    present = np.flatnonzero(drafting)
    gains = expected_accepted(rates[present], limits[present])
    order = present[np.argsort(-gains, kind="stable")]
    latencies = curve.cost(base_tokens + np.cumsum(limits[order]))
    crossover = should_use_speculation(rates[order], limits[order], 0.0, latencies, plain)
    widths[order] = np.where(crossover.is_beneficial, limits[order], 0)
    absent = np.flatnonzero(~drafting)
    latencies = curve.cost(base_tokens + widths.sum() + limits[absent])
    crossover = should_use_speculation(rates[absent], limits[absent], 0.0, latencies, plain)
    widths[absent] = np.where(crossover.is_beneficial, limits[absent], 0)
    return widths
