"""Connections that send too much, too slowly or nothing, and those that read nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.gateway.fake_scheduler import EOS, Script, Step
from tests.gateway.harness import Gateway, Start, a_client
from tests.gateway.server.raw import JSON, error_of, exchange, streamed

MAX_BODY, MAX_HEADERS = 5_000, 4_096


@pytest.fixture
async def bounded(start: Start) -> AsyncIterator[Gateway]:
    limits = {"max_body_bytes": MAX_BODY, "max_header_bytes": MAX_HEADERS, "read_seconds": 0.5}
    async with start(**limits, slow_reader_seconds=0.5, max_num_connections=4) as gateway:
        # The client's connection counts.
        await gateway.http.get("/live", headers={"connection": "close"})
        yield gateway


GET = b"GET /live HTTP/1.1\r\nhost: localhost\r\n"


async def test_headers_are_bounded_in_number_and_length(bounded: Gateway) -> None:
    many = b"".join(b"x-%d: 1\r\n" % number for number in range(200))
    long = b"x-long: " + b"a" * 2 * MAX_HEADERS + b"\r\n"
    line = b"GET /" + b"a" * 2 * MAX_HEADERS + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for request in (GET + many + b"\r\n", GET + long + b"\r\n", line):
        error = error_of(await exchange(bounded, request), 431)
        assert error["code"] == "headers_too_large"
    # Nor is one without end collected.
    endless = [b"x-long: "] + [b"a" * 1000] * 100
    assert error_of(await exchange(bounded, GET, *endless, pause=0.001), 431)
    # What is no HTTP is answered in the API's shape too.
    no_http = await exchange(bounded, b"\x16\x03\x01 hello\r\n\r\n")
    assert error_of(no_http, 400)["code"] == "invalid_http"
    # Just so many are fine.
    few = b"".join(b"x-%d: 1\r\n" % number for number in range(100)) + b"connection: close\r\n"
    assert (await exchange(bounded, GET + few + b"\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_what_trails_a_body_is_no_header(bounded: Gateway) -> None:
    trailers = b"".join(b"x-request-id: %d\r\n" % number for number in range(200))
    asked = JSON + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = await exchange(bounded, asked + b"2\r\n{}\r\n0\r\n" + trailers + b"\r\n")
    assert error_of(answer, 400)["code"] == "missing_required_parameter"
    assert b"x-request-id: req-" in answer


HEADERS = [b"x-%d: 1\r\n" % number for number in range(40)]


@pytest.mark.parametrize(
    "parts",
    [[], [GET, *HEADERS], [JSON + b"content-length: 1000\r\n\r\n", *[b" "] * 20]],
    ids=["nothing", "headers", "a body"],
)
async def test_what_comes_slowly_or_not_is_given_up(bounded: Gateway, parts: list[bytes]) -> None:
    assert error_of(await exchange(bounded, *parts, pause=0.1), 408)["code"] == "request_timeout"


@pytest.mark.parametrize("length", [b"99999999", b"9" * 30, b"9" * 4000])
async def test_a_body_announced_too_long_is_refused_at_once(
    bounded: Gateway, length: bytes
) -> None:
    answer = await exchange(bounded, JSON + b"content-length: " + length + b"\r\n\r\n")
    assert answer.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 "))
    assert len(answer) < 4096


async def test_connections_are_bounded(bounded: Gateway) -> None:
    idle = [await bounded.connect() for _ in range(4)]
    answer = await exchange(bounded)
    assert error_of(answer, 503)["code"] == "overloaded"
    assert b"\r\nretry-after: 1\r\nretry-after-ms: 1000\r\n" in answer
    for _, writer in idle:
        writer.close()
        await writer.wait_closed()
    async with a_client(bounded.url) as client:
        while (await client.get("/live")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_client_that_does_not_read_is_dropped(bounded: Gateway) -> None:
    # Slow enough that not too many outputs wait, large enough to fill the sockets' buffers.
    script = Script(steps=[Step([20] * 5000)], forever=True, pause_seconds=0.01)
    bounded.scheduler.script = script
    _, writer = await bounded.connect(limit=2**10)
    writer.write(streamed(max_tokens=4000, return_token_ids=True))
    handle = await asyncio.wait_for(bounded.scheduler.aborts.get(), 30)
    assert handle == bounded.adds[0].handle
    writer.close()
    await bounded.until_shown('outcome="disconnected"')
    assert "slow_reader" not in await bounded.metrics()


async def test_a_client_that_reads_slowly_is_not_dropped(bounded: Gateway) -> None:
    steps = [Step([20] * 2000)] * 100
    bounded.scheduler.script = Script([*steps, Step([EOS])], pause_seconds=0.01)
    reader, writer = await bounded.connect(limit=2**10)
    writer.write(streamed(b"connection: close", max_tokens=4000, return_token_ids=True))
    data = b""
    while more := await reader.read(2**17):
        data += more
        await asyncio.sleep(0.05)
    assert b"[DONE]" in data
    writer.close()


async def test_requests_that_are_sent_at_once_are_answered_one_by_one(bounded: Gateway) -> None:
    bounded.scheduler.script = Script(steps=[Step([20]), Step([20, EOS])])
    request, last = streamed(max_tokens=9), streamed(b"connection: close", max_tokens=9)
    answer = await exchange(bounded, request + request + last)
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"data: [DONE]") == 3
