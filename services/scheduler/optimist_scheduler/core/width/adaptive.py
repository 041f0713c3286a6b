"""Draft width by the rule of thumb: widen what is mostly accepted, narrow what is mostly not."""

import numpy as np

from optimist_scheduler.core.values.arrays import Int32Array, SlotArray

START_WIDTH = 5
MIN_WIDTH = 1
WIDEN_ABOVE = 0.85
NARROW_BELOW = 0.55


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
