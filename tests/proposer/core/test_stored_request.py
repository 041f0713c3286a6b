"""What a store keeps, what is written of it next, and what its answers mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.sources import Sources
from optimist_proposer.core.sources import (
    SourceName,
    name_sources,
    pack_sources,
    packed_bytes,
    unpack_sources,
)
from optimist_proposer.core.stored_request import (
    CLOSED,
    OPENING_BYTES,
    OTHER_OPENING,
    REFUSED,
    UNKNOWN,
    WRONG,
    Settled,
    StoredRequest,
    WriteKind,
    next_write,
    pack_number,
    pack_opening,
    settle_write,
)
from optimist_proposer.core.wrong_value import WrongValueError
from tests.proposer.holding import live, written
from tests.proposer.text import as_text, texts, tokens

STORED = StoredRequest(
    b"generate", SourceName(b"tenant..", b"0123456789abcdef"), tokens("a") * 70_000
)


def test_head_is_what_writes_compare() -> None:
    packed = STORED.pack()
    assert packed.startswith(pack_opening(STORED.generation) + pack_number(70_000))
    assert len(pack_opening(STORED.generation)) == OPENING_BYTES
    assert len(packed) == 37 + 4 * 70_000


@pytest.mark.parametrize("data", [b"", CLOSED, b"\x07" + bytes(60)])
def test_another_format_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="packed request"):
        StoredRequest.unpack(data, 1000)


def test_opening_is_written_whole_and_then_what_is_new() -> None:
    request = live(output="one\n")
    first = written(request)
    stored = StoredRequest.unpack(first.data, 4)
    assert (first.kind, as_text(stored.output)) == (WriteKind.OPEN, "one\n")
    assert settle_write(first, 4) is Settled.DONE
    assert next_write(request) is None
    request.fold(4, tokens("TWO\n"))
    second = written(request)
    assert (second.kind, second.num_before, second.num_after) == (WriteKind.APPEND, 4, 8)
    assert second.data == tokens("TWO\n").tobytes()
    whole = written(request, is_lost=True)
    assert whole.kind is WriteKind.CREATE
    assert as_text(StoredRequest.unpack(whole.data, 8).output) == "one\nTWO\n"


@pytest.mark.parametrize(
    ("answer", "settled", "num_logged"),
    [
        (3, Settled.AGAIN, 3),
        (9, Settled.DONE, 9),
        (UNKNOWN, Settled.CREATE, 4),
        (WRONG, Settled.CREATE, 4),
        (REFUSED, Settled.REFUSED, 4),
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
    value = pack_sources(Sources([tokens(text) for text in predictions], tokens(prompt)))
    read, last = unpack_sources(name_sources("", value), value, 4)
    assert [as_text(text) for text in read] == predictions
    assert as_text(last) == prompt
    assert pack_sources(Sources(read, last)) == value
    assert len(value) <= packed_bytes(sum(map(len, predictions)) + len(prompt) + 5)


def test_name_tells_owners_and_texts_apart() -> None:
    one, other = (pack_sources(Sources([tokens(text)])) for text in ("one", "other"))
    names = {name_sources(tenant, value) for tenant in ("", "A", "B") for value in (one, other)}
    assert len(names) == 6
    assert name_sources("A", one) in names


PACKED = pack_sources(Sources([tokens("ab"), tokens("c")], tokens("d")))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *((data, "packed sources") for data in (b"", b"\x01\0\0", b"\x09" + bytes(8))),
        (bytes(5) + b"123", "packed sources"),
        (PACKED[:-4], "has no end"),
        (pack_sources(Sources([tokens("ab")] * 3)), "more than 1 predictions"),
        # Only what begins the prompt can be counted.
        *(
            (PACKED[:1] + bytes([count, 0, 0, 0]) + PACKED[5:], "count")
            for count in (0, 3, 4, 6, 8)
        ),
        (PACKED[:1] + b"\xff" * 4 + PACKED[5:], "count"),
    ],
)
def test_another_format_of_sources_is_an_error(data: bytes, message: str) -> None:
    max_texts = 1 if "more" in message else 4
    with pytest.raises(WrongValueError, match=message):
        unpack_sources(name_sources("", data), data, max_texts)


@given(st.data())
def test_sources_of_which_a_bit_differs_are_not_those_of_their_name(data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(PACKED) - 1))
    changed = int.from_bytes(PACKED, "big") ^ 1 << bit
    with pytest.raises(WrongValueError, match="not those that they are named by"):
        unpack_sources(name_sources("", PACKED), changed.to_bytes(len(PACKED), "big"), 4)


def test_request_is_as_long_as_it_says_and_bounded() -> None:
    with pytest.raises(WrongValueError, match="70000 output tokens, more than 69999"):
        StoredRequest.unpack(STORED.pack(), 69_999)
    assert StoredRequest.unpack(STORED.pack(), 70_000) == STORED
    for data in (STORED.pack()[:-1], STORED.pack() + bytes(4)):
        with pytest.raises(WrongValueError, match="bytes are not 70000 output tokens"):
            StoredRequest.unpack(data, 70_000)
