"""How often drafts come true, learned on line by slot: those of the drafter and of windows.

A hazard is minus the logarithm of a chance, given what comes before: hazards along a path add up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.base.values import (
    Float32Array,
    FloatArray,
    Int32Array,
    SlotArray,
)
from optimist_scheduler.core.windows.window import MAX_NODES, PRIOR_HAZARD

DRAFTER_HAZARD = -math.log(0.7)
"""Of a level of a drafter, before any was examined."""
PRIOR_TOKENS = 16.0
"""How many examined drafts that trust weighs."""
MEMORY_TOKENS = 64.0
"""Examined drafts after which an observation counts 1/e."""
COMMON_TOKENS = 512.0
"""The same for what all rows have in common."""
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


@dataclass(frozen=True, slots=True)
class Drafter:
    """The shape of a drafter's drafts: chains, or trees with more nodes than levels."""

    source: DraftSource
    max_tokens: int
    """Most drafts of a row in one pass, all branches of a tree together."""
    max_depth: int
    """Most of them that can be accepted."""

    @property
    def is_lookup(self) -> bool:
        """Whether it looks drafts up in predictions and the request's own text."""
        return self.source is DraftSource.NGRAM

    @property
    def tokens_per_level(self) -> float:
        """Drafts that one more level costs; 1 for chains."""
        return self.max_tokens / self.max_depth

    def count_tokens(self, levels: npt.ArrayLike) -> Int32Array:
        """Returns how many drafts as many levels have."""
        tokens: Int32Array = -(-np.asarray(levels, np.int32) * self.max_tokens // self.max_depth)
        return tokens

    def count_levels(self, num_tokens: Int32Array) -> Int32Array:
        """Returns how many levels as many drafts have; of levels begun, the first counts."""
        levels = np.maximum(num_tokens * self.max_depth // self.max_tokens, 1)
        drafted: Int32Array = np.minimum(levels, self.max_depth) * (num_tokens > 0)
        return drafted


def expected_accepted(rate: npt.ArrayLike, num_drafts: npt.ArrayLike) -> FloatArray:
    """Returns the mean number of accepted drafts of a chain, sum of rate^i for i = 1..num_drafts.

    Draft i counts if it and all before it agree, each with chance `rate` (Leviathan et al.,
    arXiv 2211.17192, equation 1, without the bonus token).
    """
    chance = np.clip(np.asarray(rate, np.float64), 1e-12, 1 - 1e-9)
    chain = -np.expm1(np.asarray(num_drafts) * np.log(chance))
    return np.asarray(chance / (1 - chance) * chain)


class Calibration:
    """How far the chances that are said of drafts come true.

    Decayed counts per slot of examined and agreeing tokens, and of the hazard that was said of
    them. Examined are those that agreed with the output and the first that did not: what comes
    after a rejected one says nothing. The share of tokens that agreed has a hazard too, and a row's
    scale is that one over the mean of what was said: 1 for windows that say what is, more for those
    that promise too much. Hazards times the scale are what is expected.

    A new row starts with counts of `trust` tokens, which decay like any: one rejection costs
    little, a run of them brings the rate down to what is observed.
    """

    def __init__(self, max_num_seqs: int, trust: float, hazard: float) -> None:
        """Starts with empty slots.

        Args:
            max_num_seqs: Number of slots.
            trust: Examined tokens that the first trust in a row weighs.
            hazard: Of a token, before any was seen.
        """
        self._counts = np.zeros((4, max_num_seqs), np.float32)
        """Examined tokens, those that agreed, hazards, and how many examined tokens the first trust
        weighs still [4, max_num_seqs]."""
        self._trust, self._hazard = trust, np.float32(hazard)
        self._counts[3] = trust
        self._first_scales = np.ones(max_num_seqs, np.float32)
        self._common = np.array([trust, trust * math.exp(-hazard), trust * hazard])
        """The first three of all rows."""
        self.scales = np.ones(max_num_seqs, np.float32)
        """Since a token of a row was wrong, or `refresh` [max_num_seqs]."""

    def reset(self, slot: int) -> None:
        """Begins with what all rows had of late."""
        examined, agreed, estimated = self._common.tolist()
        hazard = max(-math.log(min(max(agreed / examined, 1e-9), 1.0)), MIN_HAZARD)
        scale = min(max(hazard * examined / estimated, 1 / MOST_COMMON_SCALE), MOST_COMMON_SCALE)
        self._counts[:, slot] = 0
        self._counts[3, slot] = self._trust
        self._first_scales[slot] = self.scales[slot] = scale

    def observe(
        self, slots: SlotArray, agreed: Int32Array, examined: Int32Array, estimated: Float32Array
    ) -> None:
        """Counts tokens, each slot at most once [num_rows]; doubts count at once."""
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

    def rate(self, slots: SlotArray) -> Float32Array:
        """Returns the chance that the next token agrees, 0 to 1 [num_rows]."""
        return self.weigh(slots)[0]

    def weigh(self, slots: SlotArray) -> tuple[Float32Array, Float32Array]:
        """Returns the chance that a token agrees, in the mean of those examined, and scales.

        What a row is trusted with at first counts as tokens with the mean hazard of the row's
        [num_rows].
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
    """What is expected of windows: of next tokens that they are not sure of, and of all others.

    A window is sure of a token that goes on with what the output has just copied, and mostly right.
    Of where it enters what is expected it is not, and far more often wrong: both are learnt apart.
    """

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
        return self._sure.rate(slots)

    def observe(
        self,
        slots: SlotArray,
        agreed: Int32Array,
        examined: Int32Array,
        estimated: Float32Array,
        firsts: Float32Array,
    ) -> None:
        """Counts tokens of windows, at least one each; `firsts` is the hazard of the first.

        A row that had a window but no drafts counts too: its emitted tokens are compared with the
        window as if that had been drafted.
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

    def inverse(
        self, slots: SlotArray, firsts: Float32Array
    ) -> Callable[[float | FloatArray], Float32Array]:
        """Returns what finds the hazards that windows say where given ones are expected.

        `firsts` are those of the next tokens, by what the windows say [num_rows].
        """
        scales = self._sure.scales[slots]
        unsure = (firsts > UNSURE_HAZARD).nonzero()[0]
        if not len(unsure):
            return lambda hazards: np.asarray(hazards, np.float32) / scales
        firsts, expected = firsts[unsure], (firsts * self._unsure.scales[slots])[unsure]

        def find(hazards: float | FloatArray) -> Float32Array:
            said = np.full(len(slots), hazards, np.float32)
            after = (said[unsure] - expected) / scales[unsure] + firsts
            goes_on = said[unsure] >= expected
            said /= scales
            said[unsure] = np.where(goes_on, after, np.float32(-1))
            return said

        return find
