"""How far what windows say of their own chances comes true, per slot and on line."""

import math

import numpy as np

from optimist_scheduler.core.acceptance import (
    COMMON_TOKENS,
    MEMORY_TOKENS,
    PRIOR_TOKENS,
    WINDOW_PRIOR,
)
from optimist_scheduler.core.arrays import BoolArray, Float32Array, Int32Array
from optimist_scheduler.core.threshold import MIN_HAZARD

MOST_COMMON_SCALE = 64.0
"""By which windows of new rows may be doubted, or believed, at most."""

_PRIOR_HAZARD = -math.log(WINDOW_PRIOR)


class Claims:
    """Decayed counts per slot of examined and agreeing tokens, and of the hazard claimed of them.

    The hazard of a token is minus the logarithm of its chance, given those before it. The share of
    tokens that agreed has a hazard too, and a row's scale is that one over the mean of what was
    claimed: 1 for windows that say what is, more for those that promise too much. A window's
    hazards times the scale are what is expected of it. Windows that claim the same of all their
    tokens are expected to do as they did, whatever that claim is; of others, tokens keep their
    relation to each other.
    """

    def __init__(self, max_num_seqs: int) -> None:
        """Starts with empty slots."""
        self._examined = np.full(max_num_seqs, PRIOR_TOKENS, np.float32)
        self._agreed = np.full(max_num_seqs, PRIOR_TOKENS * WINDOW_PRIOR, np.float32)
        self._claimed = np.full(max_num_seqs, PRIOR_TOKENS * _PRIOR_HAZARD, np.float32)
        self._all_examined = PRIOR_TOKENS
        self._all_agreed = PRIOR_TOKENS * WINDOW_PRIOR
        self._all_claimed = PRIOR_TOKENS * _PRIOR_HAZARD

    @property
    def common_scale(self) -> float:
        """Scale of all rows with windows that say values, of late: what new rows begin with."""
        agreed = max(self._all_agreed / self._all_examined, 1e-9)
        hazard = max(-math.log(min(agreed, 1.0)), MIN_HAZARD)
        scale = hazard / (self._all_claimed / self._all_examined)
        return min(max(scale, 1 / MOST_COMMON_SCALE), MOST_COMMON_SCALE)

    def reset(self, slot: int) -> None:
        """Forgets what was observed in a slot."""
        rate = math.exp(-_PRIOR_HAZARD * self.common_scale)
        self._examined[slot] = PRIOR_TOKENS
        self._agreed[slot] = PRIOR_TOKENS * rate
        self._claimed[slot] = PRIOR_TOKENS * _PRIOR_HAZARD

    def observe(
        self,
        slots: Int32Array,
        agreed: Int32Array,
        examined: Int32Array,
        claimed: Float32Array,
        is_valued: BoolArray,
    ) -> None:
        """Counts tokens.

        Args:
            slots: Each at most once [num_rows].
            agreed: Tokens that agreed with the output [num_rows].
            examined: Tokens that were compared with it: those that agreed and the first that did
                not, for what stands behind it says nothing [num_rows].
            claimed: Hazard of the examined tokens together [num_rows].
            is_valued: Whether the window said so itself [num_rows].
        """
        keep = np.exp(examined * np.float32(-1 / MEMORY_TOKENS), dtype=np.float32)
        self._examined[slots] = self._examined[slots] * keep + examined
        self._agreed[slots] = self._agreed[slots] * keep + agreed
        self._claimed[slots] = self._claimed[slots] * keep + claimed
        num_examined = int(examined @ is_valued)
        if num_examined:
            kept = math.exp(-num_examined / COMMON_TOKENS)
            self._all_examined = self._all_examined * kept + num_examined
            self._all_agreed = self._all_agreed * kept + int(agreed @ is_valued)
            self._all_claimed = self._all_claimed * kept + float(claimed @ is_valued)

    def rate(self, slots: Int32Array) -> Float32Array:
        """Returns the chance that a token agrees, in the mean of those examined [num_rows]."""
        return self._agreed[slots] / self._examined[slots]

    def scale(self, slots: Int32Array) -> Float32Array:
        """Returns what hazards of the rows' windows are to be multiplied by [num_rows]."""
        rates = np.maximum(self.rate(slots), np.float32(1e-9))
        hazards = np.maximum(-np.log(rates), np.float32(MIN_HAZARD))
        scales: Float32Array = hazards * self._examined[slots] / self._claimed[slots]
        return scales
