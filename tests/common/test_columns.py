"""Columns come back as they were sent."""

import sys
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.columns import (
    array_from_bytes,
    floats_from_bytes,
    floats_to_bytes,
    from_bytes,
    to_bytes,
)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.sampled_from(["little", "big"]))
def test_arrays_are_the_columns_that_numpy_makes(values: list[int], order: str) -> None:
    swapped = array("i", values)
    if order != sys.byteorder:
        swapped.byteswap()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "byteorder", order)
        assert array_from_bytes(to_bytes(values)) == swapped
    column = np.array(values, np.int64)[::2]
    assert from_bytes(to_bytes(column)).tolist() == values[::2]
    assert floats_from_bytes(floats_to_bytes([0.5, -2.0])).tolist() == [0.5, -2.0]


def test_the_wire_is_little_endian_and_what_does_not_fit_is_refused() -> None:
    assert to_bytes([1, -2]) == b"\x01\x00\x00\x00\xfe\xff\xff\xff"
    with pytest.raises(OverflowError):
        to_bytes([2**31])
    with pytest.raises(ValueError, match="buffer size"):
        from_bytes(b"\x00\x00\x00")
    with pytest.raises(ValueError, match="bytes length"):
        array_from_bytes(b"\x00\x00\x00")
