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


def test_shorter_log_is_written_from_where_it_ends() -> None:
    request = live(output="one\ntwo\n")
    request.num_logged = 8
    request.fold(8, tokens("three\n"))
    assert settle_write(written(request), 3) is Settled.AGAIN
    again = written(request)
    assert (again.num_before, again.num_after) == (3, 14)


def test_longer_log_needs_nothing() -> None:
    request = live(output="one\n")
    request.num_logged = 0
    assert settle_write(written(request), 9) is Settled.DONE
    assert next_write(request) is None


def test_lost_request_is_created_whole() -> None:
    request = live(output="one\nX")
    request.num_logged = 4
    assert settle_write(written(request), UNKNOWN) is Settled.CREATE
    whole = written(request, is_lost=True)
    assert whole.kind is WriteKind.CREATE
    assert StoredRequest.unpack(whole.data).num_known == 5


def test_other_opening_supersedes() -> None:
    assert settle_write(written(live()), OTHER_OPENING) is Settled.SUPERSEDED


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


@pytest.mark.parametrize("data", [b"", b"\x01\x00\x00", b"\x09" + bytes(8), bytes(5) + b"123"])
def test_another_format_of_sources_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="packed sources"):
        unpack_sources(data)


def test_source_without_an_end_is_an_error() -> None:
    packed = pack_sources(Sources([tokens("ab")]))
    with pytest.raises(ValueError, match="has no end"):
        unpack_sources(packed[:-4])
