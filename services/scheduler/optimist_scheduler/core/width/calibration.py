"""How far what windows say of their own chances comes true, per slot and on line."""

import math

import numpy as np

from optimist_scheduler.core.values.arrays import BoolArray, Float32Array, Int32Array, SlotArray
from optimist_scheduler.core.width.acceptance import (
    COMMON_TOKENS,
    MEMORY_TOKENS,
    PRIOR_TOKENS,
)
from optimist_scheduler.core.width.threshold import MIN_HAZARD
from optimist_scheduler.core.windows.window import WINDOW_PRIOR

MOST_COMMON_SCALE = 256.0
"""By which windows of new rows may be doubted, or believed, at most."""

_PRIOR_HAZARD = -math.log(WINDOW_PRIOR)


class Calibration:
    """Decayed counts per slot of examined and agreeing tokens, and of the estimated hazard.

    The hazard of a token is minus the logarithm of its chance, given those before it. The share of
    tokens that agreed has a hazard too, and a row's scale is that one over the mean of what was
    estimated: 1 for windows that say what is, more for those that promise too much. A window's
    hazards times the scale are what is expected of it. Windows that estimate the same for
    all their tokens are expected to do as they did, whatever that is; of others, tokens keep their
    relation to each other.
    """

    def __init__(self, max_num_seqs: int) -> None:
        """Starts with empty slots."""
        self._counts = np.zeros((4, max_num_seqs), np.float32)
        """Examined tokens, those that agreed, estimated hazards, and how many examined tokens the
        first trust weighs still [4, max_num_seqs]."""
        self._counts[3] = PRIOR_TOKENS
        self._first_scales = np.ones(max_num_seqs, np.float32)
        agreed, estimated = PRIOR_TOKENS * WINDOW_PRIOR, PRIOR_TOKENS * _PRIOR_HAZARD
        self._all_counts = np.array([PRIOR_TOKENS, agreed, estimated])
        """The first three of all rows with windows that say values [3]."""

    @property
    def common_scale(self) -> float:
        """Scale of all rows with windows that say values, of late: what new rows begin with."""
        examined, agreed, estimated = map(float, self._all_counts)
        hazard = max(-math.log(min(max(agreed / examined, 1e-9), 1.0)), MIN_HAZARD)
        scale = hazard * examined / estimated
        return min(max(scale, 1 / MOST_COMMON_SCALE), MOST_COMMON_SCALE)

    def reset(self, slot: int) -> None:
        """Forgets what was observed in a slot."""
        self._counts[:, slot] = 0
        self._counts[3, slot] = PRIOR_TOKENS
        self._first_scales[slot] = self.common_scale

    def observe(
        self,
        slots: SlotArray,
        agreed: Int32Array,
        examined: Int32Array,
        estimated: Float32Array,
        is_valued: BoolArray,
    ) -> None:
        """Counts tokens.

        Args:
            slots: Each at most once [num_rows].
            agreed: Tokens that agreed with the output [num_rows].
            examined: Tokens that were compared with it: those that agreed and the first that did
                not, for what comes after it says nothing [num_rows].
            estimated: Hazard of the examined tokens together [num_rows].
            is_valued: Whether the window said so itself [num_rows].
        """
        new = np.zeros((4, len(slots)), np.float32)
        new[0], new[1], new[2] = examined, agreed, estimated
        counts = self._counts.take(slots, axis=1)
        counts *= np.exp(new[0] * np.float32(-1 / MEMORY_TOKENS))
        counts += new
        self._counts[:, slots] = counts
        if not is_valued.all():
            new = new[:, is_valued]
        total = new[:3].sum(axis=1)
        if total[0]:
            self._all_counts = self._all_counts * math.exp(-total[0] / COMMON_TOKENS) + total

    def rate(self, slots: SlotArray) -> Float32Array:
        """Returns the chance that a token agrees, in the mean of those examined [num_rows]."""
        return self._weigh(slots)[0]

    def scale(self, slots: SlotArray) -> Float32Array:
        """Returns what hazards of the rows' windows are to be multiplied by [num_rows]."""
        rates, estimated = self._weigh(slots)
        hazards = np.maximum(-np.log(np.maximum(rates, np.float32(1e-9))), np.float32(MIN_HAZARD))
        scales: Float32Array = (hazards / estimated).astype(np.float32)
        return scales

    def _weigh(self, slots: SlotArray) -> tuple[Float32Array, Float32Array]:
        """Returns the share of tokens that agree, and the mean of what is estimated [num_rows].

        What a row is trusted with at first counts as tokens with the mean hazard of the row's.
        """
        examined, agreed, estimated, trust = self._counts[:, slots]
        means = np.where(examined > 0, estimated / np.maximum(examined, 1e-9), _PRIOR_HAZARD)
        means = np.maximum(means, 1e-6)
        trusted = trust * np.exp(-means * self._first_scales[slots])
        rates: Float32Array = ((agreed + trusted) / (examined + trust)).astype(np.float32)
        return rates, means.astype(np.float32)
