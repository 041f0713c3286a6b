"""From where on drafts that all are accepted with the same chance are faster than none."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimist_scheduler.core.base.values import BoolArray, FloatArray
from optimist_scheduler.core.width.acceptance import expected_accepted


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
