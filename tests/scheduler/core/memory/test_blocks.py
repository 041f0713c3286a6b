"""Misuse of blocks is refused, and what is cached goes in order.

That each block is in one state, and that what is found in the prefix cache is what was written, is
in test_random_commands.py.
"""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_the_least_recently_used_goes_first_and_of_a_sequence_its_end() -> None:
    pool = BlockPool(4, 2, 4)
    used = fill(pool, 0, hashes(2))
    pool.release(0)
    unused = fill(pool, 0, hashes(2, "other"))
    pool.release(0)
    pool.take(0, pool.match(hashes(2)))
    pool.release(0)
    for left, others in ((used, unused[:1]), (used, []), (used[:1], []), ([], [])):
        pool.allocate(ints(1), ints(1))
        assert pool.match(hashes(2)).tolist() == left
        assert pool.match(hashes(2, "other")).tolist() == others
        check_pool(pool)
    assert pool.num_free == 0
    with pytest.raises(MemoryError):
        pool.allocate(ints(0), ints(1))


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
