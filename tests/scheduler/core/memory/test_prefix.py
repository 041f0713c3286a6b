from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.core.base.memory import hash_blocks

TOKEN_IDS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


def test_the_chain_is_sha256_over_parent_and_little_endian_tokens() -> None:
    first = sha256(sha256("tenant ä".encode()).digest() + b"\1\0\0\0\2\1\0\0").digest()
    second = sha256(first + b"\3\0\0\0\xff\xff\xff\x7f").digest()
    assert hash_blocks([1, 258, 3, 2**31 - 1, 9], 2, "tenant ä") == [first, second]


@given(TOKEN_IDS, st.integers(1, 5), st.text(max_size=3))
def test_a_list_and_an_array_hash_alike(token_ids: list[int], block_size: int, salt: str) -> None:
    array = np.array(token_ids, np.int32)
    assert hash_blocks(array, block_size, salt) == hash_blocks(token_ids, block_size, salt)


@given(TOKEN_IDS, st.integers(1, 5), st.text(max_size=3), st.data())
def test_a_continued_chain_is_the_whole_one(
    token_ids: list[int], block_size: int, salt: str, data: st.DataObject
) -> None:
    whole = hash_blocks(token_ids, block_size, salt)
    previous = whole[: data.draw(st.integers(0, len(whole)))]
    kept = list(previous)
    assert hash_blocks(token_ids, block_size, salt, previous) == whole
    assert previous == kept


def test_known_hashes_are_not_computed_again() -> None:
    known = b"\0" * 32
    continued = sha256(known + b"\3\0\0\0\4\0\0\0").digest()
    assert hash_blocks([1, 2, 3, 4], 2, "", [known]) == [known, continued]


def test_more_known_hashes_than_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="previous: 2 hashes, the tokens fill 1 blocks"):
        hash_blocks([1, 2, 3], 2, "", [b"a", b"b"])


def test_a_token_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        hash_blocks([2**31], 1, "")


@given(TOKEN_IDS, TOKEN_IDS, st.integers(1, 5), st.text(max_size=3), st.text(max_size=3))
def test_hashes_are_equal_exactly_for_equal_salts_and_beginnings(
    ours: list[int], theirs: list[int], block_size: int, salt: str, other_salt: str
) -> None:
    theirs = ours[: len(theirs)] + theirs
    for i, our_hash in enumerate(hash_blocks(ours, block_size, salt)):
        for j, their_hash in enumerate(hash_blocks(theirs, block_size, other_salt)):
            same = ours[: (i + 1) * block_size] == theirs[: (j + 1) * block_size]
            assert (our_hash == their_hash) == (same and salt == other_salt)
