"""Blocks that wait to be evicted, in order."""

import numpy as np

from optimist_scheduler.core.base.values import Int64Array

_REMOVED = -1


class BlockQueue:
    """Blocks in the order in which they were added, each at most once.

    Columns instead of an ordered dictionary: many blocks come and go together.
    """

    def __init__(self, num_blocks: int) -> None:
        # Those that were removed are _REMOVED until all are written anew.
        self._entries = np.zeros(2 * num_blocks, np.int64)
        self._first = self._end = 0
        # Where among the entries each block of the queue is.
        self._places = np.zeros(num_blocks, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> Int64Array:
        """The blocks, the first one first [len]."""
        return self._find(self._first, self._end)

    def add(self, ids: Int64Array) -> None:
        """Adds blocks that are not in the queue."""
        if self._end + len(ids) > len(self._entries):
            self._write(self.ids, 0)
        self._write(ids, self._end)
        self._count += len(ids)

    def remove(self, ids: Int64Array) -> None:
        """Takes some of its blocks out."""
        self._entries[self._places[ids]] = _REMOVED
        self._count -= len(ids)

    def pop(self, number: int) -> Int64Array:
        """Takes the first blocks out, no more than there are, and returns them [number]."""
        end = self._first + number
        ids = self._find(self._first, end)
        while len(ids) < number:
            # Some had been removed.
            start, end = end, end + number - len(ids)
            ids = np.concatenate([ids, self._find(start, end)])
        self._first = end
        self._count -= number
        return ids

    def _find(self, first: int, end: int) -> Int64Array:
        """Returns the blocks of entries, without those that were removed."""
        ids = self._entries[first:end]
        found: Int64Array = ids[ids != _REMOVED]
        return found

    def _write(self, ids: Int64Array, first: int) -> None:
        """Writes blocks as the last entries, from `first` on; if that is 0, as the only ones."""
        self._first, self._end = min(self._first, first), first + len(ids)
        self._entries[first : self._end] = ids
        self._places[ids] = np.arange(first, self._end)
