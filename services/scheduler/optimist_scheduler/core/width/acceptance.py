"""How often a row's drafts are accepted, per slot and on line."""

import math

import numpy as np
import numpy.typing as npt

from optimist_scheduler.core.values.arrays import Float32Array, FloatArray, Int32Array, SlotArray

DRAFTER_PRIOR = 0.7
"""Agreement that a drafter is trusted with before it has drafted anything."""
PRIOR_TOKENS = 16.0
"""How many examined drafts that trust weighs."""
MEMORY_TOKENS = 64.0
"""Examined drafts after which an observation counts 1/e."""
COMMON_TOKENS = 512.0
"""The same for what all rows have in common."""


class Acceptance:
    """Decayed counts of examined and of agreeing drafts per slot [max_num_seqs].

    Their ratio estimates the chance that a draft agrees, given that those before it did (one less
    the hazard of a chain). A new row starts with counts of `PRIOR_TOKENS` drafts, which decay like
    any: one rejection costs little, a run of them brings the rate down to what is observed.
    """

    def __init__(self, max_num_seqs: int, prior: float, *, is_common: bool = False) -> None:
        """Starts with empty slots.

        Args:
            max_num_seqs: Number of slots.
            prior: Rate of a new row.
            is_common: Whether rows are alike: then a new one starts with the rate that all rows
                have had of late, and `prior` is only where that starts.
        """
        self._examined = np.full(max_num_seqs, PRIOR_TOKENS, np.float32)
        self._agreed = np.full(max_num_seqs, PRIOR_TOKENS * prior, np.float32)
        self._is_common = is_common
        self._all_examined, self._all_agreed = PRIOR_TOKENS, PRIOR_TOKENS * prior

    @property
    def prior(self) -> float:
        """Rate of a new row."""
        return self._all_agreed / self._all_examined

    def reset(self, slot: int) -> None:
        """Forgets what was observed in a slot."""
        self._examined[slot] = PRIOR_TOKENS
        self._agreed[slot] = PRIOR_TOKENS * self.prior

    def observe(self, slots: SlotArray, agreed: Int32Array, examined: Int32Array) -> None:
        """Counts drafts.

        Args:
            slots: Each at most once [num_rows].
            agreed: Drafts that agreed with the output [num_rows].
            examined: Drafts that were compared with it: those that agreed and the first that did
                not, for what comes after a rejected draft says nothing [num_rows].
        """
        keep = np.exp(examined * np.float32(-1 / MEMORY_TOKENS), dtype=np.float32)
        self._examined[slots] = self._examined[slots] * keep + examined
        self._agreed[slots] = self._agreed[slots] * keep + agreed
        if self._is_common and (num_examined := int(examined.sum())):
            kept = math.exp(-num_examined / COMMON_TOKENS)
            self._all_examined = self._all_examined * kept + num_examined
            self._all_agreed = self._all_agreed * kept + int(agreed.sum())

    def rate(self, slots: SlotArray) -> Float32Array:
        """Returns the chance that the next draft agrees, 0 to 1 [num_rows]."""
        return self._agreed[slots] / self._examined[slots]


def expected_accepted(rate: npt.ArrayLike, num_drafts: npt.ArrayLike) -> FloatArray:
    """Returns the mean number of accepted drafts of a chain, sum of rate^i for i = 1..num_drafts.

    Draft i counts if it and all before it agree, each with chance `rate` (Leviathan et al.,
    arXiv 2211.17192, equation 1, without the bonus token).
    """
    chance = np.clip(np.asarray(rate, np.float64), 1e-12, 1 - 1e-9)
    chain = -np.expm1(np.asarray(num_drafts) * np.log(chance))
    return np.asarray(chance / (1 - chance) * chain)
