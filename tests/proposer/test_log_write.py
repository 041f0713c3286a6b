from optimist_proposer.core.live_request import LiveRequest
from optimist_proposer.core.output_log import decode_output
from optimist_proposer.core.stored_request import (
    OTHER_OPENING,
    UNKNOWN,
    LogWrite,
    Settled,
    StoredRequest,
    WriteKind,
    next_write,
    settle_write,
)
from tests.proposer.holding import prepared
from tests.proposer.text import as_text, tokens

POEM = "one\ntwo\nthree\n"


def written(request: LiveRequest, *, is_lost: bool = False) -> LogWrite:
    write = next_write(request, is_lost=is_lost)
    assert write is not None
    return write


def opened(output: str = "") -> LiveRequest:
    request = LiveRequest("a", b"generate", prepared(POEM))
    request.fold(0, tokens(output))
    return request


def test_opening_is_written_whole_and_then_what_is_new() -> None:
    request = opened("one\n")
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
    request = opened("one\ntwo\n")
    request.num_logged = 8
    request.fold(8, tokens("three\n"))
    assert settle_write(written(request), 3) is Settled.AGAIN
    again = written(request)
    assert (again.num_before, again.num_after) == (3, 14)


def test_longer_log_needs_nothing() -> None:
    request = opened("one\n")
    request.num_logged = 0
    assert settle_write(written(request), 9) is Settled.DONE
    assert next_write(request) is None


def test_lost_request_is_created_whole() -> None:
    request = opened("one\nX")
    request.num_logged = 4
    assert settle_write(written(request), UNKNOWN) is Settled.CREATE
    whole = written(request, is_lost=True)
    assert whole.kind is WriteKind.CREATE
    assert StoredRequest.unpack(whole.data).num_known == 5


def test_other_opening_supersedes() -> None:
    assert settle_write(written(opened()), OTHER_OPENING) is Settled.SUPERSEDED
