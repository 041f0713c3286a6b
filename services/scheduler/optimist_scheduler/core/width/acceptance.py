"""What the worker drafts with, and how often a row's drafts are accepted, learned on line by slot.

Of the worker's drafter as a rate, and for the rule of thumb as the accepted share.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimist_aligner.cost import CostCurve
from optimist_common.drafts import DraftSource
from optimist_scheduler.core.base.values import (
    Float32Array,
    FloatArray,
    Int32Array,
    SlotArray,
)

DRAFTER_PRIOR = 0.7
"""Agreement that a drafter is trusted with before it has drafted anything."""
PRIOR_TOKENS = 16.0
"""How many examined drafts that trust weighs."""
MEMORY_TOKENS = 64.0
"""Examined drafts after which an observation counts 1/e."""
COMMON_TOKENS = 512.0
"""The same for what all rows have in common."""
_FADING = np.float32(-1 / MEMORY_TOKENS)

START_WIDTH = 5
MIN_WIDTH = 1
WIDEN_ABOVE = 0.85
NARROW_BELOW = 0.55

_Counts = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Drafter:
    """The shape of a drafter's drafts: chains, or trees with more nodes than levels."""

    source: DraftSource
    max_tokens: int
    """Most drafts of a row in one pass, all branches of a tree together."""
    max_depth: int
    """Most of them that can be accepted."""
    is_padded: bool = False
    """Whether a pass takes the time of all drafts that are planned, not of those that it makes."""

    @property
    def is_selective(self) -> bool:
        """Whether it makes those drafts only that are likely enough, for which alone a pass takes
        its time."""
        return self.is_lookup and not self.is_padded

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


@dataclass(frozen=True, slots=True, eq=False)
class DrafterRows:
    """What a choice of widths has to know of the drafter."""

    rates: npt.NDArray[np.floating]
    """Chance that a level is accepted, given that those before it were [num_rows]."""
    limits: Int32Array
    """Most levels [num_rows]."""
    tokens_per_level: float
    curve: CostCurve
    """Time of the drafter by the largest level of a pass, however many rows it drafts for."""

    def cost(self, levels: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Returns the time in nanoseconds that the drafter takes for passes of so many levels."""
        levels = np.asarray(levels)
        return np.where(levels > 0, self.curve.cost(levels), 0.0)


class Acceptance:
    """Decayed counts of examined and of agreeing drafts per slot [max_num_seqs].

    Their ratio estimates the chance that a draft agrees, given that those before it did (one less
    the hazard of a chain). A new row starts with counts of `PRIOR_TOKENS` drafts, which decay like
    any: one rejection costs little, a run of them brings the rate down to what is observed.
    """

    def __init__(self, max_num_seqs: int, prior: float) -> None:
        """Starts with empty slots.

        Args:
            max_num_seqs: Number of slots.
            prior: Rate of a new row, before anything was observed.
        """
        self._examined = np.full(max_num_seqs, PRIOR_TOKENS, np.float32)
        self._agreed = np.full(max_num_seqs, PRIOR_TOKENS * prior, np.float32)
        self._all_examined, self._all_agreed = PRIOR_TOKENS, PRIOR_TOKENS * prior

    @property
    def prior(self) -> float:
        """Rate of a new row: what all rows have had of late."""
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
        keep = np.exp(examined * _FADING, dtype=np.float32)
        self._examined[slots] = self._examined[slots] * keep + examined
        self._agreed[slots] = self._agreed[slots] * keep + agreed
        if num_examined := int(examined.sum()):
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


class AdaptiveWidths:
    """A width per slot, moved by one with every pass that drafted [max_num_seqs].

    The step goes by the accepted share of all drafts of the request so far. The rule knows no
    costs and never turns a request's drafts off.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._widths = np.zeros(max_num_seqs, np.int32)
        self._limits = np.zeros(max_num_seqs, np.int32)
        self._proposed = np.zeros(max_num_seqs, np.int64)
        self._accepted = np.zeros(max_num_seqs, np.int64)

    def reset(self, slot: int, limit: int) -> None:
        """Starts a request that may draft up to `limit` tokens a pass."""
        self._limits[slot] = limit
        self._widths[slot] = min(START_WIDTH, limit)
        self._proposed[slot] = 0
        self._accepted[slot] = 0

    def observe(self, slots: SlotArray, drafted: Int32Array, accepted: Int32Array) -> None:
        """Moves the widths of the rows that drafted; each slot at most once [num_rows]."""
        self._proposed[slots] += drafted
        self._accepted[slots] += accepted
        rates = self._accepted[slots] / np.maximum(self._proposed[slots], 1)
        moves = (rates > WIDEN_ABOVE).astype(np.int32) - (rates < NARROW_BELOW)
        moved = np.maximum(self._widths[slots] + moves * (drafted > 0), MIN_WIDTH)
        self._widths[slots] = np.minimum(moved, self._limits[slots])

    def choose(self, slots: SlotArray) -> Int32Array:
        """Returns the most drafts per row [num_rows]."""
        return self._widths[slots]
