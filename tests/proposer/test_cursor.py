from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_proposer.core.cursor import VERSION_BYTES, Cursor
from optimist_proposer.core.line import LineAlgorithm
from tests.proposer.text import NEWLINES, observed, texts, tokens

LINE = LineAlgorithm(NEWLINES)


@given(texts, texts)
def test_packing_keeps_everything(predicted: str, output: str) -> None:
    cursor = observed(LINE, predicted, output)
    assert Cursor.unpack(cursor.pack()) == cursor


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_version_is_epoch_and_known_length(epoch: int, num_known: int) -> None:
    plain = Cursor(epoch=epoch, num_known=num_known).pack()
    moved = Cursor(
        epoch=epoch, num_known=num_known, offset=-1, line=7, lines=array("i", [5])
    ).pack()
    assert plain[:VERSION_BYTES] == moved[:VERSION_BYTES]
    assert Cursor(epoch + 1 & 0x7FFFFFFF, num_known).pack()[:VERSION_BYTES] != plain[:VERSION_BYTES]


def test_packed_size_is_that_of_lines_and_tail() -> None:
    predicted = "".join(f"line {number}\n" for number in range(800))
    assert len(observed(LINE, predicted, predicted).pack()) == 37 + 4 * 800
    assert len(observed(LINE, predicted, predicted + "xyz").pack()) == 37 + 4 * 800 + 4 * 3
    assert len(observed(LINE, predicted, "none\nof\nthese\n").pack()) == 37


def test_another_format_is_refused() -> None:
    data = bytearray(Cursor(tail=tokens("a")).pack())
    data[VERSION_BYTES] += 1
    with pytest.raises(ValueError, match="format 2, not 1"):
        Cursor.unpack(bytes(data))
    with pytest.raises(ValueError, match="not a packed cursor"):
        Cursor.unpack(b"short")
