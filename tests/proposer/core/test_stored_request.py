"""What a store keeps, what is written of it next, and what its answers mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.sources import Sources
from optimist_proposer.core.output_log import decode_output
from optimist_proposer.core.sources import SourceName, name_sources, pack_sources, unpack_sources
from optimist_proposer.core.stored_request import (
    CLOSED,
    OPENING_BYTES,
    OTHER_OPENING,
    UNKNOWN,
    Settled,
    StoredRequest,
    WriteKind,
    next_write,
    pack_number,
    pack_opening,
    settle_write,
)
from tests.proposer.holding import live, written
from tests.proposer.text import as_text, texts, tokens

STORED = StoredRequest(b"generate", 70_000, SourceName(b"tenant..", b"0123456789abcdef"), b"log")


def test_head_is_what_writes_compare() -> None:
    packed = STORED.pack()
    assert packed.startswith(pack_opening(STORED.generation) + pack_number(70_000))
    assert len(pack_opening(STORED.generation)) == OPENING_BYTES
    assert len(packed) == 37 + len(STORED.log)


@pytest.mark.parametrize("data", [b"", CLOSED, b"\x07" + bytes(60)])
def test_another_format_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="packed request"):
        StoredRequest.unpack(data)


def test_opening_is_written_whole_and_then_what_is_new() -> None:
    request = live(output="one\n")
    first = written(request)
    stored = StoredRequest.unpack(first.data)
    assert (first.kind, stored.num_known) == (WriteKind.OPEN, 4)
    assert settle_write(first, 4) is Settled.DONE
    assert next_write(request) is None
    request.fold(4, tokens("TWO\n"))
    second = written(request)
    assert (second.kind, second.num_before, second.num_after) == (WriteKind.APPEND, 4, 8)
    output = decode_output(request.prepared.sources, 0, stored.log + second.data)
    assert as_text(output) == "one\nTWO\n"
    whole = written(request, is_lost=True)
    assert (whole.kind, StoredRequest.unpack(whole.data).num_known) == (WriteKind.CREATE, 8)


@pytest.mark.parametrize(
    ("answer", "settled", "num_logged"),
    [
        (3, Settled.AGAIN, 3),
        (9, Settled.DONE, 9),
        (UNKNOWN, Settled.CREATE, 4),
        (OTHER_OPENING, Settled.SUPERSEDED, 4),
    ],
)
def test_answer_says_what_is_left_to_write(answer: int, settled: Settled, num_logged: int) -> None:
    request = live(output="one\nTWO\n")
    request.num_logged = 4
    assert settle_write(written(request), answer) is settled
    assert request.num_logged == num_logged


@given(st.lists(texts, max_size=4), texts)
def test_sources_come_back(predictions: list[str], prompt: str) -> None:
    sources = Sources([tokens(text) for text in predictions], tokens(prompt))
    other = unpack_sources(pack_sources(sources))
    assert other.token_ids == sources.token_ids
    assert other.positions == sources.positions
    assert other.num_predicted == sources.num_predicted


def test_name_tells_owners_and_texts_apart() -> None:
    one, other = (pack_sources(Sources([tokens(text)])) for text in ("one", "other"))
    names = {name_sources(tenant, value) for tenant in ("", "A", "B") for value in (one, other)}
    assert len(names) == 6
    assert name_sources("A", one) in names


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *((data, "packed sources") for data in (b"", b"\x01\0\0", b"\x09" + bytes(8))),
        (bytes(5) + b"123", "packed sources"),
        (pack_sources(Sources([tokens("ab")]))[:-4], "has no end"),
    ],
)
def test_another_format_of_sources_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unpack_sources(data)
