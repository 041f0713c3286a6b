"""KV blocks: which are free, and which slot owns which."""

import numpy as np

from optimist_scheduler.core.requests import Int32Array


class BlockPool:
    """A stack of free blocks and the block table of every slot."""

    def __init__(self, num_blocks: int, max_num_seqs: int, max_blocks_per_seq: int) -> None:
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self._num_free = num_blocks
        self._tables = np.full((max_num_seqs, max_blocks_per_seq), -1, np.int32)
        self.num_blocks = np.zeros(max_num_seqs, np.int32)
        """Blocks per slot [max_num_seqs]."""

    @property
    def num_free(self) -> int:
        """Blocks that no slot owns."""
        return self._num_free

    def table(self, slot: int) -> Int32Array:
        """Returns the blocks of a slot in the order of its tokens [num_blocks[slot]]."""
        return self._tables[slot, : self.num_blocks[slot]]

    def allocate(self, slots: Int32Array, counts: Int32Array) -> Int32Array:
        """Appends free blocks to the tables of `slots`.

        Args:
            slots: Each at most once [num_rows].
            counts: Blocks per slot [num_rows].

        Returns:
            The ids, slot after slot [sum(counts)].

        Raises:
            MemoryError: There are not as many free blocks.
        """
        total = int(counts.sum())
        if total > self._num_free:
            raise MemoryError(f"{total} blocks wanted, {self._num_free} free")
        if total == 0:
            return np.empty(0, np.int32)
        ids = self._free[self._num_free - total : self._num_free][::-1].copy()
        self._num_free -= total
        firsts = np.cumsum(counts) - counts
        columns = np.arange(total) + np.repeat(self.num_blocks[slots] - firsts, counts)
        self._tables[np.repeat(slots, counts), columns] = ids
        self.num_blocks[slots] += counts
        return ids

    def release(self, slot: int) -> None:
        """Takes all blocks of a slot back."""
        count = int(self.num_blocks[slot])
        self._free[self._num_free : self._num_free + count] = self._tables[slot, :count][::-1]
        self._num_free += count
        self._tables[slot, :count] = -1
        self.num_blocks[slot] = 0

    def check_integrity(self) -> None:
        """Raises AssertionError unless each block is free or owned, exactly once."""
        owned = self._tables[self._tables >= 0]
        if len(owned) != self.num_blocks.sum():
            raise AssertionError(f"{len(owned)} blocks in tables, {self.num_blocks.sum()} counted")
        blocks = np.sort(np.concatenate([owned, self._free[: self._num_free]]))
        if not np.array_equal(blocks, np.arange(len(self._free))):
            raise AssertionError("a block is lost, or owned twice")
