"""KV blocks: which are free, which slots own which, and which hold a known beginning."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import compress

import numpy as np

from optimist_scheduler.core.base.values import Int32Array, Int64Array, SlotArray

Hashes = Sequence[bytes]

_TOKENS = np.dtype("<i4")
_REMOVED = -1


class _BlockQueue:
    """Blocks that wait to be evicted, in the order in which they were added, each at most once.

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


@dataclass(slots=True, eq=False)
class _Unhashed:
    """Blocks of a sequence that is over, evictable and without hashes as yet."""

    before: bytes
    """Hash of the block before them."""
    blocks: Int64Array
    """In the order of the sequence [num_blocks]."""
    find_hashes: Callable[[], Hashes]
    """Computes theirs, and those of the blocks after them that were evicted."""


class BlockPool:
    """Free blocks, the block table of every slot, and the prefix cache.

    A block is in one of three states: free on the stack (nothing in it is of use), evictable
    (cached, in no table; free as well, until somebody takes it), or referenced by as many slots as
    have it in their tables. A referenced block may be cached or not.

    Blocks of a sequence that is over may be cached without their hashes: those are computed when
    somebody's tokens agree up to there. Mostly nobody's do until the blocks are evicted.

    A block that several slots reference is never written by any of them. Slots come to share a
    block only by `take`, which gives out cached blocks, and only a block that is full of verified
    tokens whose keys and values are computed is registered. Its owner writes after its verified
    tokens alone, that is after the block, and so does a slot that took it, as long as what it
    takes ends before the first token that it computes: a request of n tokens, whose last one is
    always computed, looks up its first (n - 1) // block_size hashes and no more.
    """

    def __init__(self, num_blocks: int, max_num_seqs: int, max_blocks_per_seq: int) -> None:
        self.num_blocks = np.zeros(max_num_seqs, np.int32)
        """Blocks per slot [max_num_seqs]."""
        # What indexes is of int64: numpy takes several times as long to index by others.
        self._stack = np.arange(num_blocks - 1, -1, -1, dtype=np.int64)
        self._num_stacked = num_blocks
        self._tables = np.full((max_num_seqs, max_blocks_per_seq), -1, np.int32)
        self._num_references = np.zeros(num_blocks, np.int32)
        self._is_cached = np.zeros(num_blocks, np.bool_)
        self._block_of: dict[bytes, int] = {}
        self._hash_of: list[bytes] = [b""] * num_blocks
        # By the hash of the block before the first.
        self._unhashed: dict[bytes, _Unhashed] = {}
        # The same by their last block, which is evicted first.
        self._unhashed_by_end: dict[int, _Unhashed] = {}
        # The least recently used first.
        self._evictable = _BlockQueue(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that no slot references, cached ones included."""
        return self._num_stacked + len(self._evictable)

    def table(self, slot: int) -> Int32Array:
        """Returns the blocks of a slot in the order of its tokens [num_blocks[slot]]."""
        return self._tables[slot, : self.num_blocks[slot]]

    def allocate(self, slots: SlotArray, counts: Int32Array) -> Int32Array:
        """Appends free blocks to the tables of slots, `counts` to each; returns their ids.

        Cached ones are evicted only if it must be. What was matched and not taken yet may be among
        them: take first. Raises MemoryError or IndexError, with nothing changed, if there are not
        as many free blocks, or a table would be longer than the longest sequence.
        """
        # Most rows need none.
        rows = counts.nonzero()[0]
        if not len(rows):
            return np.empty(0, np.int32)
        slots, counts = slots.take(rows), counts.take(rows)
        numbers = counts.astype(np.int64)
        sums = np.add.accumulate(numbers)
        total = int(sums[-1])
        if total > self.num_free:
            raise MemoryError(f"{total} blocks wanted, {self.num_free} free")
        ends = self.num_blocks.take(slots) + counts
        max_length = self._tables.shape[1]
        if np.count_nonzero(ends > max_length):
            raise IndexError(f"{ends.max()} blocks for one slot, at most {max_length} fit")
        if total > self._num_stacked:
            self._evict(total - self._num_stacked)
        rest = self._num_stacked - total
        indices = self._stack[rest : self._num_stacked][::-1]
        # What is set is of the column's type: numpy takes several times as long to convert it.
        ids = indices.astype(np.int32)
        # Where each slot's blocks end in the flat tables, less where they end in `ids`.
        shifts = slots * max_length + ends - sums
        self._tables.reshape(-1)[np.arange(total) + shifts.repeat(numbers)] = ids
        self._num_stacked = rest
        self._num_references[indices] = 1
        self.num_blocks[slots] = ends
        return ids

    def match(self, hashes: Sequence[bytes]) -> Int32Array:
        """Returns the cached blocks of the longest known beginning [num_matched].

        `hashes` are those of the first blocks of a sequence. What is cached does not change, not
        even what is evicted next.
        """
        ids: list[int] = []
        before = b""
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None and before in self._unhashed:
                self._hash(before)
                block = self._block_of.get(block_hash)
            if block is None:
                break
            ids.append(block)
            before = block_hash
        return np.array(ids, np.int32)

    def num_evictable(self, ids: Int32Array) -> int:
        """Returns how many of the matched blocks `ids` count as free until they are taken."""
        return len(ids) - int(np.count_nonzero(self._num_references.take(ids)))

    def take(self, slot: int, ids: Int32Array) -> None:
        """Makes blocks from `match` the beginning of the table of a slot.

        Raises ValueError, with nothing changed, if the slot has blocks, or one is not cached.
        """
        if self.num_blocks[slot]:
            raise ValueError(f"slot {slot} has {self.num_blocks[slot]} blocks already")
        if len(ids) == 0:
            return
        indices = ids.astype(np.int64)
        if np.count_nonzero(self._is_cached[indices]) < len(ids):
            raise ValueError(f"not all of the blocks {ids.tolist()} are cached")
        self._tables[slot, : len(ids)] = ids
        self.num_blocks[slot] = len(ids)
        num_references = self._num_references[indices]
        if np.count_nonzero(num_references) < len(ids):
            self._evictable.remove(indices[num_references == 0])
        self._num_references[indices] = num_references + 1

    def register(self, slot: int, first_index: int, hashes: Sequence[bytes]) -> None:
        """Caches blocks of a slot; all their tokens are verified and computed.

        They begin at `first_index` of its table; `hashes` are of its first blocks, up to the last
        of these. A hash that another block is cached by stays with that one. Raises IndexError or
        ValueError, with nothing changed, if the table has not as many blocks, or one is cached by
        another hash: it was written to after it was full.
        """
        end = len(hashes)
        self._check_indices(slot, first_index, end)
        ids = self._tables[slot, first_index:end].astype(np.int64)
        if self._unhashed and not self._unhashed.keys().isdisjoint(hashes):
            for known in hashes:
                if known in self._unhashed:
                    self._hash(known)
        hashes = hashes[first_index:]
        is_cached = self._is_cached[ids]
        if np.count_nonzero(is_cached):
            for block, block_hash in compress(zip(ids.tolist(), hashes, strict=True), is_cached):
                if self._hash_of[block] != block_hash:
                    raise ValueError(f"block {block} is cached by another hash")
        if not self._block_of.keys().isdisjoint(hashes):
            is_new = np.array([block_hash not in self._block_of for block_hash in hashes])
            ids, hashes = ids[is_new], [*compress(hashes, is_new)]
        self._is_cached[ids] = True
        blocks = ids.tolist()
        self._block_of.update(zip(hashes, blocks, strict=True))
        for block, block_hash in zip(blocks, hashes, strict=True):
            self._hash_of[block] = block_hash

    def register_unhashed(
        self, slot: int, first_index: int, end: int, before: bytes, hash_all: Callable[[], Hashes]
    ) -> None:
        """Caches blocks of a slot that is released next, but computes their hashes when needed.

        They are those from `first_index` to `end` of its table, of which none is cached; `before`
        is the hash of the block before them, and `hash_all` computes those of all up to `end`.
        """
        self._check_indices(slot, first_index, end)
        if before in self._unhashed:
            self.register(slot, first_index, hash_all())
            return
        ids = self._tables[slot, first_index:end].astype(np.int64)
        run = _Unhashed(before, ids, lambda: hash_all()[first_index:])
        self._unhashed[before] = self._unhashed_by_end[int(ids[-1])] = run
        self._is_cached[ids] = True

    def num_freed_by(self, slots: SlotArray) -> int:
        """Returns how many blocks would be free if `slots`, each named once, were released."""
        tables = self._tables[slots]
        blocks, counts = np.unique(tables[tables >= 0], return_counts=True)
        return int((self._num_references[blocks] == counts).sum())

    def release(self, slot: int) -> None:
        """Takes the blocks of a slot back; without blocks it does nothing.

        Cached blocks that no other slot references are evictable from now on, the end of the
        sequence before its beginning: without its beginning the end would not be found.
        """
        count = int(self.num_blocks[slot])
        table = self._tables[slot, :count]
        ids = table[::-1].astype(np.int64)
        table.fill(-1)
        self.num_blocks[slot] = 0
        num_left = self._num_references.take(ids) - 1
        self._num_references[ids] = num_left
        if np.count_nonzero(num_left):
            ids = ids[num_left == 0]
        is_cached = self._is_cached.take(ids)
        cached = ids[is_cached]
        self._evictable.add(cached)
        if len(cached) < len(ids):
            self._push(ids[~is_cached])

    def _check_indices(self, slot: int, first_index: int, end: int) -> None:
        if not 0 <= first_index <= end <= self.num_blocks[slot]:
            raise IndexError(f"slot {slot} has {self.num_blocks[slot]} blocks, not {end}")

    def _hash(self, before: bytes) -> None:
        """Computes the hashes of blocks that come after a hash and have none yet."""
        run = self._unhashed.pop(before)
        blocks = run.blocks.tolist()
        del self._unhashed_by_end[blocks[-1]]
        # The last ones may have been evicted. A hash that another block is cached by stays with it.
        for block, block_hash in zip(blocks, run.find_hashes(), strict=False):
            if block_hash not in self._block_of:
                self._block_of[block_hash] = block
                self._hash_of[block] = block_hash
                continue
            ids = np.array([block], np.int64)
            self._evictable.remove(ids)
            self._is_cached[ids] = False
            self._push(ids)

    def _push(self, ids: Int64Array) -> None:
        self._stack[self._num_stacked : self._num_stacked + len(ids)] = ids
        self._num_stacked += len(ids)

    def _evict(self, number: int) -> None:
        ids = self._evictable.pop(number)
        blocks, index = ids.tolist(), 0
        block_of, hash_of = self._block_of, self._hash_of
        while index < number:
            block = blocks[index]
            if block_hash := hash_of[block]:
                del block_of[block_hash]
                hash_of[block] = b""
                index += 1
                continue
            # They were released together, and nobody has taken one: the end is evicted first.
            run = self._unhashed_by_end.pop(block)
            num_left = max(len(run.blocks) - (number - index), 0)
            index += len(run.blocks) - num_left
            run.blocks = run.blocks[:num_left]
            if num_left:
                self._unhashed_by_end[int(run.blocks[-1])] = run
            else:
                del self._unhashed[run.before]
        self._is_cached[ids] = False
        self._push(ids)


def hash_blocks(
    token_ids: Sequence[int] | Int32Array,
    block_size: int,
    salt: str,
    previous: Sequence[bytes] = (),
) -> list[bytes]:
    """Hashes the full blocks of a sequence, each together with all that is before it.

    The hash of a block is sha256(hash of the block before || its tokens, int32 little-endian);
    before the first block comes sha256(salt, UTF-8). Equal hashes thus mean equal tokens from the
    beginning on, so equal keys and values, and the same salt. Chained block hashes are
    vLLM's method (automatic prefix caching); that the hash is a cryptographic one keeps anybody
    from building a prompt that meets the blocks of another.

    Those of the first blocks that are known already, `previous`, are not computed again.
    """
    num_full = len(token_ids) // block_size
    hashes = list(previous)
    parent = hashes[-1] if hashes else sha256(salt.encode()).digest()
    new_token_ids = token_ids[len(hashes) * block_size : num_full * block_size]
    tokens = np.asarray(new_token_ids, _TOKENS).tobytes()
    size = _TOKENS.itemsize * block_size
    for start in range(0, len(tokens), size):
        parent = sha256(parent + tokens[start : start + size]).digest()
        hashes.append(parent)
    return hashes
