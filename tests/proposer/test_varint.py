import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_proposer.core.output_log import put_varint, read_varints, unzigzag, zigzag


@given(st.lists(st.integers(0, 2**35 - 1)))
def test_numbers_come_back(values: list[int]) -> None:
    data = bytearray()
    for value in values:
        put_varint(data, value)
    assert read_varints(bytes(data)) == values


def test_small_numbers_take_a_byte() -> None:
    data = bytearray()
    for value in (0, 127, 128):
        put_varint(data, value)
    assert bytes(data) == b"\x00\x7f\x80\x01"


@pytest.mark.parametrize(
    ("data", "message"), [(b"\x01\x80", "ends within"), (b"\x80" * 5 + b"\x01", "too many bytes")]
)
def test_broken_data_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_varints(data)


@given(st.integers(-(2**31), 2**31))
def test_zigzag_comes_back(value: int) -> None:
    assert zigzag(value) >= 0
    assert unzigzag(zigzag(value)) == value
    assert zigzag(value) <= 2 * abs(value)
