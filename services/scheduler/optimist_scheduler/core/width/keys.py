"""What keys in memory add to a pass: attention takes the longer the longer the rows are."""

from typing import NamedTuple

import numpy as np

from optimist_aligner.cost import CostCurve
from optimist_scheduler.core.base.values import Int32Array


class KeyCosts(NamedTuple):
    """Times that the worker has measured, in nanoseconds; 0 if it has not."""

    row_ns: float = 0.0
    """Of each key of a row."""
    token_ns: float = 0.0
    """Of each key and each token of the row after its first."""

    def __bool__(self) -> bool:
        """Returns whether keys cost anything."""
        return self.row_ns > 0 or self.token_ns > 0

    def time(self, num_computed: Int32Array, num_tokens: Int32Array) -> float:
        """Returns what keys have added to a pass, in nanoseconds.

        Args:
            num_computed: Keys of each row after the pass [num_rows].
            num_tokens: Tokens of each row in the pass, which see half of each other in the mean
                [num_rows].
        """
        lengths = np.maximum(num_computed - num_tokens / 2, 0)
        return float((lengths * (self.row_ns + self.token_ns * (num_tokens - 1))).sum())

    def curve(self, plain: CostCurve, lengths: Int32Array) -> CostCurve:
        """Returns what passes of some rows take by their tokens, their drafts shared out evenly.

        Args:
            plain: What passes take without keys.
            lengths: Keys of each row [num_rows].
        """
        if not self or not len(lengths):
            return plain
        further = self.token_ns * float(lengths.mean())
        return plain.with_line(self.row_ns * float(lengths.sum()) - further * len(lengths), further)


NO_KEY_COSTS = KeyCosts()
