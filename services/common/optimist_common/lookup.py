"""How likely drafts are that are looked up in a text, by what of the text before them is the same.

Measured at the 5,099 tokens with which the outputs of 76 real edits left their windows: how often
the prediction goes on like the output after the longest match within `REACH` tokens.
"""

import math

import numpy as np
import numpy.typing as npt

LONGEST_MATCH = 8
"""Last tokens that are compared; more add nothing."""
REACH = 512
"""How far from where a copy would go on it is looked for, in tokens, both ways."""
MATCH_AT_START = 1
"""Before the first token of an output nothing says that it begins as the prediction does: it is
taken to be as likely as after a match of so many tokens."""
MOST_DRAFTS = 64
"""Drafts of one lookup."""
PRIOR_TOKENS = 4.0
"""How many examined drafts the first trust in what is claimed weighs."""
MEMORY = 0.95
"""What a lookup of a slot leaves of the weight of those before."""
_CHANCES = (0.05, 0.29, 0.48, 0.62, 0.75, 0.87, 0.93, 0.96, 0.98)
"""Chance of the next token by how many tokens before it match."""
_FAR_CHANCE = 0.985
"""The same after more of them."""


def _find_chances(num_matched: int) -> list[float]:
    chances = [*_CHANCES[num_matched:], *[_FAR_CHANCE] * MOST_DRAFTS][:MOST_DRAFTS]
    return list(np.cumprod(chances))


CHANCES: npt.NDArray[np.float32] = np.array(
    [_find_chances(matched) for matched in range(LONGEST_MATCH + 1)], np.float32
)
"""Chance that a draft and all before it come [tokens that match before them, draft]."""


class Doubts:
    """How much less likely drafts are than `CHANCES` says, by what came of those before.

    Hazards are minus the logarithms of chances. The mean of those that are claimed of the drafts
    that were examined is compared with that of the share of them that were right, of each slot by
    itself: what other rows have come to may differ from rank to rank.
    """

    def __init__(self, num_slots: int) -> None:
        """Believes `CHANCES` at first."""
        self._hazards = -np.log(CHANCES)
        self._num_matched = np.zeros(num_slots, np.int64)
        self._sums = np.zeros((3, num_slots), np.float32)
        """Examined drafts, those that were right, and their hazards [3, num_slots]."""

    def admit(self, slot: int) -> None:
        """Forgets a slot."""
        self._sums[:, slot] = 0

    def count_likely(
        self,
        slots: npt.NDArray[np.int64],
        num_matched: npt.NDArray[np.int64],
        least_chance: float,
    ) -> npt.NDArray[np.int64]:
        """Returns how many drafts have at least a chance [num_rows].

        Each slot is named once; `num_matched` is of the sources that they are drafted from.
        """
        self._num_matched[slots] = num_matched
        examined, right, claimed = self._sums[:, slots]
        means = np.where(examined > 0, claimed / np.maximum(examined, 1), np.float32(1))
        trusted = PRIOR_TOKENS * np.exp(-means)
        scales = -np.log((right + trusted) / (examined + PRIOR_TOKENS)) / means
        most = -math.log(least_chance) if least_chance > 0 else math.inf
        likely: npt.NDArray[np.int64] = np.count_nonzero(
            self._hazards[num_matched] * scales[:, None] <= most, axis=1
        )
        return likely

    def observe(
        self,
        slots: npt.NDArray[np.int64],
        drafted: npt.NDArray[np.int64],
        accepted: npt.NDArray[np.int64],
    ) -> None:
        """Takes what came of drafts, at least one of each slot [num_rows]."""
        last = np.minimum(accepted, drafted - 1)
        claimed = self._hazards[self._num_matched[slots], last]
        new = np.stack([last + 1, accepted, claimed])
        self._sums[:, slots] = self._sums[:, slots] * np.float32(MEMORY) + new
