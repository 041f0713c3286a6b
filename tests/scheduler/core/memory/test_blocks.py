"""Blocks are in one state each, and what is found in the prefix cache is what was written."""

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from optimist_scheduler.core.base.memory import BlockPool, hash_blocks
from tests.scheduler.integrity import check_pool
from tests.scheduler.situation import ints


def hashes(count: int, salt: str = "") -> list[bytes]:
    return hash_blocks(range(count), 1, salt)


def fill(pool: BlockPool, slot: int, known: list[bytes]) -> list[int]:
    """Gives a slot a block for each hash and caches them."""
    ids = pool.allocate(ints(slot), ints(len(known))).tolist()
    pool.register(slot, 0, known)
    check_pool(pool)
    return [int(block) for block in ids]


def test_misuse_is_refused_and_changes_nothing() -> None:
    pool = BlockPool(8, 2, 3)
    ids = fill(pool, 0, hashes(2))
    pool.allocate(ints(1), ints(1))
    with pytest.raises(IndexError, match="4 blocks for one slot, at most 3 fit"):
        pool.allocate(ints(1, 0), ints(1, 2))
    for first_index, count in ((0, 3), (2, 1), (-1, 1)):
        with pytest.raises(IndexError, match="slot 0 has 2 blocks"):
            pool.register(0, first_index, hashes(count))
        with pytest.raises(IndexError, match="slot 0 has 2 blocks"):
            pool.register_unhashed(0, first_index, count, b"", list)
    with pytest.raises(ValueError, match=f"block {ids[0]} is cached by another hash"):
        pool.register(0, 0, hashes(1, "other"))
    with pytest.raises(ValueError, match="slot 1 has 1 blocks already"):
        pool.take(1, ints(*ids))
    check_pool(pool)
    assert (pool.num_blocks.tolist(), pool.num_free) == ([2, 1], 5)
    assert pool.match(hashes(3)).tolist() == ids


def test_a_match_that_was_evicted_meanwhile_is_not_taken() -> None:
    pool = BlockPool(2, 2, 4)
    fill(pool, 0, hashes(2))
    pool.release(0)
    matched = pool.match(hashes(2))
    pool.allocate(ints(0), ints(1))
    with pytest.raises(ValueError, match="not all of the blocks"):
        pool.take(1, matched)
    assert pool.table(1).tolist() == []
    check_pool(pool)


def test_hashes_are_computed_only_for_tokens_that_agree_up_to_there() -> None:
    pool = BlockPool(8, 2, 4)
    ids = fill(pool, 0, hashes(1)) + pool.allocate(ints(0), ints(2)).tolist()
    computed = list[int]()

    def hash_all() -> list[bytes]:
        computed.append(0)
        return hashes(3)

    pool.register_unhashed(0, 1, 3, hashes(1)[-1], hash_all)
    pool.release(0)
    assert pool.match(hashes(3, "other")).tolist() == []
    assert pool.match(hashes(1)).tolist() == ids[:1]
    assert not computed
    assert pool.match(hashes(4)).tolist() == ids
    assert pool.match(hashes(4)).tolist() == ids
    assert len(computed) == 1
    check_pool(pool)


BLOCK_SIZE = 2
MAX_BLOCKS = 5
SALTS = st.sampled_from(["", "tenant"])
STEM = [0, 1, 1, 0, 1, 0, 0, 1, 0, 0]


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """Part of one text and some more tokens, so that prompts often begin alike."""
    tail = draw(st.lists(st.integers(0, 1), max_size=3))
    stem = STEM[: BLOCK_SIZE * MAX_BLOCKS - len(tail)]
    return stem[: draw(st.sampled_from([10, 5, 3, 1]))] + tail


class Sequence:
    """A request of the model: all its tokens but the last one are computed."""

    def __init__(self, salt: str, token_ids: list[int]) -> None:
        self.salt = salt
        self.token_ids = token_ids
        self.blocks: list[int] = []
        self.num_computed = 0

    @property
    def num_lacking(self) -> int:
        return -(-len(self.token_ids) // BLOCK_SIZE) - len(self.blocks)

    def beginning(self, num_blocks: int) -> tuple[str, bytes]:
        """What the last of the first blocks holds: keys and values depend on all before it."""
        return self.salt, bytes(self.token_ids[: num_blocks * BLOCK_SIZE])

    def hashes(self, num_blocks: int) -> list[bytes]:
        return hash_blocks(self.token_ids[: num_blocks * BLOCK_SIZE], BLOCK_SIZE, self.salt)


class BlockPoolMachine(RuleBasedStateMachine):
    """Compares the pool with sets and lists that know what each block holds."""

    @initialize(num_blocks=st.integers(3, 16), max_num_seqs=st.integers(2, 5))
    def start(self, num_blocks: int, max_num_seqs: int) -> None:
        self.pool = BlockPool(num_blocks, max_num_seqs, MAX_BLOCKS)
        self.sequences: list[Sequence | None] = [None] * max_num_seqs
        self.contents: dict[int, tuple[str, bytes]] = {}
        """What was written to a block up to its last position."""
        self.unused = set(range(num_blocks))
        self.evictable: list[int] = []
        """The least recently used first."""
        self.cached: dict[tuple[str, bytes], int] = {}
        self.num_evictions = 0

    def draw_slot(self, data: st.DataObject, taken: bool) -> int:
        slots = [i for i, known in enumerate(self.sequences) if (known is not None) == taken]
        return data.draw(st.sampled_from(slots), label="slot")

    def sequence(self, slot: int) -> Sequence:
        sequence = self.sequences[slot]
        assert sequence is not None
        return sequence

    def some_run(self) -> bool:
        return any(sequence is not None for sequence in self.sequences)

    def holders(self, block: int) -> list[Sequence]:
        return [known for known in self.sequences if known is not None and block in known.blocks]

    def expect_match(self, sequence: Sequence, num_blocks: int) -> list[int]:
        blocks: list[int] = []
        for i in range(1, num_blocks + 1):
            block = self.cached.get(sequence.beginning(i))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def allocate(self, slots: list[int], counts: list[int]) -> None:
        """Allocates and checks that exactly what was free, in the right order, was given."""
        total = sum(counts)
        ids = self.pool.allocate(ints(*slots), ints(*counts)).tolist()
        assert len(ids) == len(set(ids)) == total
        num_evicted = max(total - len(self.unused), 0)
        evicted, self.evictable = self.evictable[:num_evicted], self.evictable[num_evicted:]
        if num_evicted:
            assert set(ids) == self.unused | set(evicted)
        assert set(ids) <= self.unused | set(evicted)
        self.unused -= set(ids)
        self.cached = {known: block for known, block in self.cached.items() if block not in evicted}
        self.num_evictions += num_evicted
        given = iter(ids)
        for slot, count in zip(slots, counts, strict=True):
            self.sequence(slot).blocks += [next(given) for _ in range(count)]

    def compute(self, sequence: Sequence) -> None:
        """Writes all tokens but the last, only to blocks of this sequence alone."""
        for position in range(sequence.num_computed, len(sequence.token_ids) - 1):
            block = sequence.blocks[position // BLOCK_SIZE]
            assert self.holders(block) == [sequence]
            assert block not in self.cached.values()
            written = sequence.token_ids[: position + 1]
            self.contents[block] = sequence.salt, bytes(written)
        sequence.num_computed = len(sequence.token_ids) - 1

    @precondition(lambda self: None in self.sequences)
    @rule(data=st.data(), salt=SALTS, token_ids=prompts())
    def admit(self, data: st.DataObject, salt: str, token_ids: list[int]) -> None:
        slot, sequence = self.draw_slot(data, taken=False), Sequence(salt, token_ids)
        num_usable = (len(token_ids) - 1) // BLOCK_SIZE
        matched = self.pool.match(sequence.hashes(num_usable))
        assert matched.tolist() == self.expect_match(sequence, num_usable)
        for i, block in enumerate(matched.tolist()):
            assert self.contents[block] == sequence.beginning(i + 1)
        num_evictable = self.pool.num_evictable(matched)
        assert num_evictable == len(set(matched.tolist()) & set(self.evictable))
        sequence.blocks = matched.tolist()
        if sequence.num_lacking > self.pool.num_free - num_evictable:
            return
        self.sequences[slot] = sequence
        self.pool.take(slot, matched)
        self.evictable = [block for block in self.evictable if block not in sequence.blocks]
        sequence.num_computed = len(matched) * BLOCK_SIZE
        self.allocate([slot], [sequence.num_lacking])
        self.compute(sequence)

    @precondition(some_run)
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        """Appends tokens to several sequences, and allocates for all of them at once."""
        slots = [slot for slot, known in enumerate(self.sequences) if known is not None]
        slots = data.draw(st.permutations(slots), label="slots")
        for slot in slots:
            room = BLOCK_SIZE * MAX_BLOCKS - len(self.sequence(slot).token_ids)
            new = st.lists(st.integers(0, 1), max_size=min(room, 3))
            self.sequence(slot).token_ids += data.draw(new, label=f"tokens of slot {slot}")
        counts = [self.sequence(slot).num_lacking for slot in slots]
        if sum(counts) <= self.pool.num_free:
            self.allocate(slots, counts)
            for slot in slots:
                self.compute(self.sequence(slot))
            return
        with pytest.raises(MemoryError):
            self.pool.allocate(ints(*slots), ints(*counts))
        for slot in slots:
            sequence = self.sequence(slot)
            del sequence.token_ids[sequence.num_computed + 1 :]

    @precondition(some_run)
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        """Caches a part of what is computed, or all of it."""
        slot = self.draw_slot(data, taken=True)
        first, end = 0, self.sequence(slot).num_computed // BLOCK_SIZE
        if data.draw(st.booleans(), label="part"):
            end = data.draw(st.integers(0, end), label="end")
            first = data.draw(st.integers(0, end), label="first")
        self.cache(slot, first, end)

    def cache(self, slot: int, first: int, end: int) -> None:
        sequence = self.sequence(slot)
        self.pool.register(slot, first, sequence.hashes(end))
        for i in range(first, end):
            self.cached.setdefault(sequence.beginning(i + 1), sequence.blocks[i])

    def cache_unhashed(self, slot: int) -> None:
        """Caches all that is computed, as much of it as may be without its hashes."""
        sequence = self.sequence(slot)
        first = end = sequence.num_computed // BLOCK_SIZE
        while first > 1 and not (
            sequence.blocks[first - 1] in self.cached.values()
            or sequence.beginning(first) in self.cached
        ):
            first -= 1
        self.cache(slot, 0, first)
        if first < end:
            known = sequence.hashes(end)
            self.pool.register_unhashed(slot, first, end, known[first - 1], lambda: known)
            for i in range(first, end):
                self.cached[sequence.beginning(i + 1)] = sequence.blocks[i]

    @precondition(some_run)
    @rule(data=st.data(), caches=st.booleans(), hashes=st.booleans(), twice=st.booleans())
    def release(self, data: st.DataObject, caches: bool, hashes: bool, twice: bool) -> None:
        sequence = self.sequence(slot := self.draw_slot(data, taken=True))
        if caches and hashes:
            self.cache(slot, 0, sequence.num_computed // BLOCK_SIZE)
        elif caches:
            self.cache_unhashed(slot)
        self.pool.release(slot)
        if twice:
            self.pool.release(slot)
        self.sequences[slot] = None
        for block in reversed(sequence.blocks):
            if self.holders(block):
                continue
            if block in self.cached.values():
                self.evictable.append(block)
            else:
                self.unused.add(block)

    @invariant()
    def pool_is_the_model(self) -> None:
        check_pool(self.pool)
        assert self.pool.num_free == len(self.unused) + len(self.evictable)
        assert self.pool.num_evictions == self.num_evictions
        for slot, sequence in enumerate(self.sequences):
            assert self.pool.table(slot).tolist() == ([] if sequence is None else sequence.blocks)

    @invariant()
    def computed_blocks_hold_what_was_written(self) -> None:
        for sequence in self.sequences:
            for i in range(0 if sequence is None else sequence.num_computed // BLOCK_SIZE):
                assert sequence is not None
                assert self.contents[sequence.blocks[i]] == sequence.beginning(i + 1)
        for known, block in self.cached.items():
            assert self.contents[block] == known


BlockPoolMachine.TestCase.settings = settings(
    max_examples=2 * settings.default.max_examples, stateful_step_count=50, deadline=None
)
test_pool_against_model = BlockPoolMachine.TestCase


# Hashes.


TOKEN_IDS = st.lists(st.integers(0, 2**31 - 1), max_size=12)


def test_the_chain_is_sha256_over_parent_and_little_endian_tokens() -> None:
    first = sha256(sha256("tenant ä".encode()).digest() + b"\1\0\0\0\2\1\0\0").digest()
    second = sha256(first + b"\3\0\0\0\xff\xff\xff\x7f").digest()
    assert hash_blocks([1, 258, 3, 2**31 - 1, 9], 2, "tenant ä") == [first, second]


@given(TOKEN_IDS, st.integers(1, 5), st.text(max_size=3), st.data())
def test_a_continued_chain_is_the_whole_one(
    token_ids: list[int], block_size: int, salt: str, data: st.DataObject
) -> None:
    whole = hash_blocks(token_ids, block_size, salt)
    previous = whole[: data.draw(st.integers(0, len(whole)))]
    kept = list(previous)
    assert hash_blocks(token_ids, block_size, salt, previous) == whole
    assert previous == kept
