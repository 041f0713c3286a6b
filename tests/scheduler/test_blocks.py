import numpy as np
import pytest

from optimist_scheduler.core.blocks import BlockPool


def column(*values: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
    return np.array(values, np.int32)


def test_blocks_are_appended_row_after_row() -> None:
    pool = BlockPool(8, 3, 4)
    assert pool.allocate(column(2, 0), column(2, 1)).tolist() == [0, 1, 2]
    assert pool.allocate(column(0, 2), column(1, 1)).tolist() == [3, 4]
    assert pool.table(2).tolist() == [0, 1, 4]
    assert pool.table(0).tolist() == [2, 3]
    assert pool.num_free == 3
    pool.check_integrity()


def test_released_blocks_are_free_again() -> None:
    pool = BlockPool(4, 2, 4)
    pool.allocate(column(0, 1), column(2, 2))
    pool.release(0)
    assert pool.num_free == 2
    assert pool.table(0).tolist() == []
    pool.check_integrity()
    assert sorted(pool.allocate(column(1), column(2)).tolist()) == [0, 1]
    pool.check_integrity()


def test_more_blocks_than_are_free_are_not_given() -> None:
    pool = BlockPool(4, 2, 4)
    with pytest.raises(MemoryError, match="5 blocks wanted, 4 free"):
        pool.allocate(column(0, 1), column(3, 2))
    assert pool.num_free == 4
    pool.check_integrity()


def test_a_block_that_is_owned_twice_is_found() -> None:
    pool = BlockPool(4, 2, 4)
    pool.allocate(column(0, 1), column(1, 1))
    pool.table(1)[0] = pool.table(0)[0]
    with pytest.raises(AssertionError, match="owned twice"):
        pool.check_integrity()
