"""What a store keeps, what is written of it next, and what its answers mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.sources import Sources
from optimist_proposer.core.sources import (
    SourceName,
    WrongValueError,
    name_sources,
    pack_sources,
    packed_bytes,
    unpack_sources,
)
from optimist_proposer.core.stored_request import (
    CLOSED,
    StoredRequest,
)
from tests.proposer.text import as_text, texts, tokens

STORED = StoredRequest(b"generate", SourceName(b"tenant..", b"0123456789abcdef"), tokens("a") * 70)
PACKED_REQUEST = STORED.pack()


@pytest.mark.parametrize(
    ("data", "most", "message"),
    [
        *((data, 1000, "packed request") for data in (b"", CLOSED, b"\x07" + bytes(60))),
        (PACKED_REQUEST, 69, "70 output tokens, more than 69"),
        (PACKED_REQUEST[:-1], 70, "bytes are not 70 output tokens"),
        (PACKED_REQUEST + bytes(4), 70, "bytes are not 70 output tokens"),
    ],
)
def test_another_format_of_a_request_is_an_error(data: bytes, most: int, message: str) -> None:
    with pytest.raises(WrongValueError, match=message):
        StoredRequest.unpack(data, most)
    assert StoredRequest.unpack(PACKED_REQUEST, 70) == STORED


@given(st.lists(texts, max_size=4), texts)
def test_sources_come_back(predictions: list[str], prompt: str) -> None:
    value = pack_sources(Sources([tokens(text) for text in predictions], tokens(prompt)))
    read, last = unpack_sources(name_sources("", value), value, 4)
    assert [as_text(text) for text in read] == predictions
    assert as_text(last) == prompt
    assert pack_sources(Sources(read, last)) == value
    assert len(value) <= packed_bytes(sum(map(len, predictions)) + len(prompt) + 5)


PACKED = pack_sources(Sources([tokens("ab"), tokens("c")], tokens("d")))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *((data, "packed sources") for data in (b"", b"\x01\0\0", b"\x09" + bytes(8))),
        (bytes(5) + b"123", "packed sources"),
        (PACKED[:-4], "has no end"),
        (pack_sources(Sources([tokens("ab")] * 3)), "more than 1 predictions"),
        # Only what begins the prompt can be counted.
        *((PACKED[:1] + bytes([count, 0, 0, 0]) + PACKED[5:], "count") for count in (0, 4, 255)),
    ],
)
def test_another_format_of_sources_is_an_error(data: bytes, message: str) -> None:
    max_texts = 1 if "more" in message else 4
    with pytest.raises(WrongValueError, match=message):
        unpack_sources(name_sources("", data), data, max_texts)
    changed = data[:-1] + b"\1"
    with pytest.raises(WrongValueError, match="not those that they are named by"):
        unpack_sources(name_sources("", data), changed, max_texts)
