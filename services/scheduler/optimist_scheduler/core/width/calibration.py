"""How far what windows say of their own chances comes true, learned on line by slot.

A window is sure of a token that goes on with what the output has just copied, and mostly right. Of
where it enters what is expected it is not sure, and far more often wrong. So the two are learnt
apart.
"""

import math
from collections.abc import Callable

import numpy as np

from optimist_scheduler.core.base.values import (
    Float32Array,
    FloatArray,
    Int32Array,
    SlotArray,
)
from optimist_scheduler.core.width.acceptance import COMMON_TOKENS, MEMORY_TOKENS, PRIOR_TOKENS
from optimist_scheduler.core.windows.window import MAX_NODES, PRIOR_HAZARD

UNSURE_HAZARD = 0.25
"""Hazard of a next token above which a window is not sure of it."""
PRIOR_ENTRIES = 4.0
"""How many examined tokens of which windows are not sure the first trust in them weighs."""
PRIOR_ENTRY_HAZARD = math.log(2)
"""Of such a token, before any was seen."""
MIN_HAZARD = 1 / 1024
"""No row is taken to be certain."""
MOST_COMMON_SCALE = 256.0
"""By which windows of new rows may be doubted, or believed, at most."""
_KEPT = np.exp(np.arange(MAX_NODES + 2, dtype=np.float32) / np.float32(-MEMORY_TOKENS))
"""What is left of counts after so many examined tokens of a window."""


class Calibration:
    """Decayed counts per slot of examined and agreeing tokens, and of the estimated hazard.

    The hazard of a token is minus the logarithm of its chance, given those before it. The share of
    tokens that agreed has a hazard too, and a row's scale is that one over the mean of what was
    estimated: 1 for windows that say what is, more for those that promise too much. A window's
    hazards times the scale are what is expected of it. Windows that estimate the same for
    all their tokens are expected to do as they did, whatever that is; of others, tokens keep their
    relation to each other.
    """

    def __init__(self, max_num_seqs: int, trust: float, hazard: float) -> None:
        """Starts with empty slots.

        Args:
            max_num_seqs: Number of slots.
            trust: Examined tokens that the first trust in a row weighs.
            hazard: Of a token, before any was seen.
        """
        self._counts = np.zeros((4, max_num_seqs), np.float32)
        """Examined tokens, those that agreed, estimated hazards, and how many examined tokens the
        first trust weighs still [4, max_num_seqs]."""
        self._trust, self._hazard = trust, np.float32(hazard)
        self._counts[3] = trust
        self._first_scales = np.ones(max_num_seqs, np.float32)
        self._common = np.array([trust, trust * math.exp(-hazard), trust * hazard])
        """The first three of all rows."""
        self.scales = np.ones(max_num_seqs, np.float32)
        """Since a token of a row was wrong, or `refresh` [max_num_seqs]."""

    @property
    def common_scale(self) -> float:
        """Scale of all rows, of late: what new rows begin with."""
        examined, agreed, estimated = self._common.tolist()
        hazard = max(-math.log(min(max(agreed / examined, 1e-9), 1.0)), MIN_HAZARD)
        scale: float = hazard * examined / estimated
        return min(max(scale, 1 / MOST_COMMON_SCALE), MOST_COMMON_SCALE)

    def reset(self, slot: int) -> None:
        """Forgets what was observed in a slot."""
        self._counts[:, slot] = 0
        self._counts[3, slot] = self._trust
        self._first_scales[slot] = self.scales[slot] = self.common_scale

    def observe(
        self, slots: SlotArray, agreed: Int32Array, examined: Int32Array, estimated: Float32Array
    ) -> None:
        """Counts tokens; doubts count at once.

        Args:
            slots: Each at most once [num_rows].
            agreed: Tokens that agreed with the output [num_rows].
            examined: Tokens that were compared with it: those that agreed and the first that did
                not, for what comes after it says nothing [num_rows].
            estimated: Hazard of the examined tokens together [num_rows].
        """
        new = np.empty((3, len(slots)), np.float32)
        new[0], new[1], new[2] = examined, agreed, estimated
        counts = self._counts.take(slots, axis=1)
        counts *= _KEPT.take(examined)
        counts[:3] += new
        # By columns: numpy takes several times as long to set rows of a plane at once.
        of_slots = self._counts
        of_slots[0][slots], of_slots[1][slots] = counts[0], counts[1]
        of_slots[2][slots], of_slots[3][slots] = counts[2], counts[3]
        added = np.add.reduce(new, 1)
        self._common = self._common * math.exp(-float(added[0]) / COMMON_TOKENS) + added
        missed = agreed < examined
        if np.count_nonzero(missed):
            self.refresh(slots[missed])

    def refresh(self, slots: SlotArray) -> None:
        """Sets the scales of slots to what is known of them now."""
        self.scales[slots] = self.weigh(slots)[1]

    def weigh(self, slots: SlotArray) -> tuple[Float32Array, Float32Array]:
        """Returns rates and scales.

        A rate is the chance that a token agrees, in the mean of those examined; a scale is what
        hazards of the row's windows are to be multiplied by. What a row is trusted with at first
        counts as tokens with the mean hazard of the row's [num_rows].
        """
        examined, agreed, estimated, trust = self._counts.take(slots, axis=1)
        if np.count_nonzero(examined) == len(examined):
            means: Float32Array = estimated / examined
        else:
            means = estimated / np.maximum(examined, np.float32(1e-9))
            means = np.where(examined > 0, means, self._hazard)
        means = np.maximum(means, np.float32(1e-6))
        trusted = trust * np.exp(-means * self._first_scales[slots])
        rates: Float32Array = (agreed + trusted) / (examined + trust)
        hazards: Float32Array = -np.log(np.maximum(rates, np.float32(1e-9)))
        hazards = np.maximum(hazards, np.float32(MIN_HAZARD))
        return rates, hazards / means


class WindowCalibration:
    """What is expected of windows: of next tokens that they are not sure of, and of all others."""

    def __init__(self, max_num_seqs: int) -> None:
        """Starts with empty slots."""
        self._sure = Calibration(max_num_seqs, PRIOR_TOKENS, PRIOR_HAZARD)
        self._unsure = Calibration(max_num_seqs, PRIOR_ENTRIES, PRIOR_ENTRY_HAZARD)

    @property
    def scales(self) -> Float32Array:
        """What hazards of tokens that windows are sure of are multiplied by [max_num_seqs]."""
        return self._sure.scales

    def reset(self, slot: int) -> None:
        """Forgets what was observed in a slot: it begins with what all rows had of late."""
        self._sure.reset(slot)
        self._unsure.reset(slot)

    def refresh(self, slots: SlotArray) -> None:
        """Takes what is known of slots now; see `Calibration.refresh`."""
        self._sure.refresh(slots)
        self._unsure.refresh(slots)

    def rate(self, slots: SlotArray) -> Float32Array:
        """Returns the chance that a token agrees of which windows are sure [num_rows]."""
        return self._sure.weigh(slots)[0]

    def observe(
        self,
        slots: SlotArray,
        agreed: Int32Array,
        examined: Int32Array,
        estimated: Float32Array,
        firsts: Float32Array,
    ) -> None:
        """Counts tokens of windows.

        Args:
            slots: Each at most once [num_rows].
            agreed: Tokens of the window that agreed with the output [num_rows].
            examined: Tokens that were compared with it, at least one: those and the first that did
                not agree [num_rows].
            estimated: Hazard of the examined tokens together, by what the windows say [num_rows].
            firsts: That of the first of them [num_rows].
        """
        is_unsure = firsts > UNSURE_HAZARD
        if num_unsure := np.count_nonzero(is_unsure):
            is_right = np.minimum(agreed, 1)
            self._unsure.observe(
                slots[is_unsure],
                is_right[is_unsure],
                np.ones(num_unsure, np.int32),
                firsts[is_unsure],
            )
            agreed, examined = agreed - is_right * is_unsure, examined - is_unsure
            estimated = np.maximum(estimated - firsts * is_unsure, np.float32(0))
        self._sure.observe(slots, agreed, examined, estimated)

    def expect(self, slots: SlotArray, hazards: Float32Array) -> Float32Array:
        """Returns what is expected of the hazards that windows say, cumulated [num_rows, most]."""
        firsts = np.where(np.isfinite(hazards[:, :1]), hazards[:, :1], np.float32(0))
        sure, unsure = self._sure.scales[slots, None], self._unsure.scales[slots, None]
        of_first = firsts * np.where(firsts > UNSURE_HAZARD, unsure, sure)
        expected: Float32Array = of_first + (hazards - firsts) * sure
        return expected

    def find_depths(
        self, slots: SlotArray, firsts: Float32Array
    ) -> Callable[[float | FloatArray], Float32Array]:
        """Returns what finds the hazards that windows say of drafts of which some are expected.

        Args:
            slots: The rows' [num_rows].
            firsts: Hazard of the first drafts, by what the windows say [num_rows].
        """
        scales = self._sure.scales[slots]
        unsure = (firsts > UNSURE_HAZARD).nonzero()[0]
        if not len(unsure):
            return lambda depth: np.asarray(depth, np.float32) / scales
        firsts, expected = firsts[unsure], (firsts * self._unsure.scales[slots])[unsure]

        def find(depth: float | FloatArray) -> Float32Array:
            depths = np.full(len(slots), depth, np.float32)
            after = (depths[unsure] - expected) / scales[unsure] + firsts
            is_deep = depths[unsure] >= expected
            depths /= scales
            depths[unsure] = np.where(is_deep, after, np.float32(-1))
            return depths

        return find
