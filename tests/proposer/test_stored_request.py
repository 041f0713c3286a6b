import pytest

from optimist_proposer.core.sources import SourceName
from optimist_proposer.core.stored_request import (
    CLOSED,
    OPENING_BYTES,
    StoredRequest,
    pack_number,
    pack_opening,
)

STORED = StoredRequest(b"generate", 70_000, SourceName(b"tenant..", b"0123456789abcdef"), b"log")


def test_request_comes_back() -> None:
    assert StoredRequest.unpack(STORED.pack()) == STORED


def test_head_is_what_writes_compare() -> None:
    packed = STORED.pack()
    assert packed.startswith(pack_opening(STORED.generation) + pack_number(70_000))
    assert len(pack_opening(STORED.generation)) == OPENING_BYTES
    assert len(packed) == 37 + len(STORED.log)


@pytest.mark.parametrize("data", [b"", CLOSED, b"\x07" + bytes(60)])
def test_another_format_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="packed request"):
        StoredRequest.unpack(data)
