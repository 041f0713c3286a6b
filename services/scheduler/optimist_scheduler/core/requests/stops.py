"""Which tokens end some request."""

from collections.abc import Collection

import numpy as np

from optimist_scheduler.core.values.arrays import BoolArray, Int32Array


class StopTokens:
    """Counts, per token, the requests that it may end, so that most steps need one look."""

    def __init__(self, vocab_size: int) -> None:
        self._counts = np.zeros(vocab_size, np.int32)
        self._is_stop = np.zeros(vocab_size, np.bool_)

    def add(self, token_ids: Collection[int]) -> None:
        """Counts a request with these stop tokens."""
        self._count(list(token_ids), 1)

    def remove(self, token_ids: Collection[int]) -> None:
        """Counts it no longer."""
        self._count(list(token_ids), -1)

    def find(self, token_ids: Int32Array) -> BoolArray:
        """Returns which tokens may end some request [num_tokens]."""
        return self._is_stop.take(token_ids)

    def _count(self, token_ids: list[int], change: int) -> None:
        self._counts[token_ids] += change
        self._is_stop[token_ids] = self._counts[token_ids] > 0
