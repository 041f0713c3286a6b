"""Requests that are refused before their bodies are read, and what becomes of the bodies."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import asking, served, until
from tests.gateway.fake_scheduler import FakeScheduler, Script
from tests.gateway.server.test_authentication import BODY, CHAT, bearer, error_of

MAX_BODY = 5_000
HEAD = (
    f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    "authorization: Bearer key-a\r\n"
).encode()
LIVE = b"GET /live HTTP/1.1\r\nhost: a\r\n\r\n"


@asynccontextmanager
async def full(http: httpx.AsyncClient, scheduler: FakeScheduler) -> AsyncIterator[None]:
    """Is the only request that is admitted for the time of the block."""
    scheduler.script = Script(hang=True)
    running = asyncio.create_task(http.post(CHAT, json=BODY, headers=bearer("key-a")))
    await until(lambda: len(scheduler.adds) == 1)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def url(
    settings: GatewaySettings, tokenizer: Tokenizer, scheduler: FakeScheduler
) -> AsyncIterator[str]:
    """A gateway at its limit of one request."""
    limits: dict[str, Any] = {
        "api_keys": ["ann:key-a"],
        "max_num_requests": 1,
        "max_body_bytes": MAX_BODY,
        "read_seconds": 0.5,
    }
    async with served(settings, tokenizer, **limits) as http, full(http, scheduler):
        yield str(http.base_url).rstrip("/")


class Connection:
    """A client that writes bytes and reads answers with a length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Reads the next answer: status, headers, body."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode()
        line, *lines = head.strip().split("\r\n")
        headers = dict(one.lower().split(": ", 1) for one in lines)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(line.split()[1]), headers, body


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


def require_refused(answer: tuple[int, dict[str, str], bytes]) -> dict[str, str]:
    """Checks that an answer is a refusal; returns its headers."""
    status, headers, body = answer
    assert status == 429
    assert json.loads(body)["error"]["code"] == "overloaded"
    assert int(headers["retry-after-ms"]) >= 1000
    assert int(headers["retry-after"]) >= 1
    return headers


async def test_a_refusal_does_not_wait_for_the_body_and_the_connection_stays(url: str) -> None:
    data = json.dumps(BODY).encode()
    head = HEAD + b"content-length: %d\r\n\r\n" % len(data)
    async with connected(url) as connection:
        for _ in range(2):
            connection.writer.write(head)
            headers = require_refused(await connection.answer())
            assert "connection" not in headers
            connection.writer.write(data)
        connection.writer.write(LIVE)
        assert (await connection.answer())[0] == 200


async def test_a_chunked_body_is_thrown_away_too(url: str) -> None:
    async with connected(url) as connection:
        connection.writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        require_refused(await connection.answer())
        connection.writer.write(b"3\r\nabc\r\n" * 20 + b"0\r\n\r\n" + LIVE)
        assert (await connection.answer())[0] == 200


async def test_what_is_thrown_away_is_bounded_in_size(url: str) -> None:
    async with connected(url) as connection:
        connection.writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        require_refused(await connection.answer())
        with pytest.raises(ConnectionError):
            await send_chunks(connection, 10**7)


async def send_chunks(connection: Connection, num_bytes: int) -> None:
    """Sends so much of a body, not all at once."""
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    for _ in range(num_bytes // len(chunk)):
        connection.writer.write(chunk)
        await connection.writer.drain()
        await asyncio.sleep(0.001)


async def test_what_is_thrown_away_is_bounded_in_time(url: str) -> None:
    async with connected(url) as connection:
        connection.writer.write(HEAD + b"content-length: 4000\r\n\r\n")
        require_refused(await connection.answer())
        connection.writer.write(b" ")
        assert await asyncio.wait_for(connection.reader.read(), 10) == b""


async def test_who_asks_before_he_sends_a_body_need_not_send_it(url: str) -> None:
    async with connected(url) as connection:
        connection.writer.write(HEAD + b"expect: 100-continue\r\ncontent-length: 4000\r\n\r\n")
        headers = require_refused(await connection.answer())
        assert headers["connection"] == "close"
        assert await asyncio.wait_for(connection.reader.read(), 10) == b""


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
async def test_keys_come_first_then_room_then_the_body(
    settings: GatewaySettings, tokenizer: Tokenizer, scheduler: FakeScheduler, path: str
) -> None:
    limits: dict[str, Any] = {"api_keys": ["ann:key-a"], "max_num_requests": 1}
    async with asking(settings, tokenizer, **limits) as http, full(http, scheduler):
        unknown = await http.post(path, content=b"{", headers=bearer("key-c"))
        assert error_of(unknown, 401)["code"] == "invalid_api_key"
        wrong = {"content": b"{", "headers": bearer("key-a")}
        refused = await http.post(path, **wrong)  # type: ignore[arg-type]
        assert error_of(refused, 429)["code"] == "overloaded"
        # What is not limited is answered.
        models = await http.get("/v1/models", headers=bearer("key-a"))
        assert models.status_code == 200
        metrics = (await http.get("/metrics", headers=bearer("key-a"))).text
        assert f'requests_total{{endpoint="{path}",outcome="429"}} 1.0' in metrics
        assert 'refusals_total{reason="overloaded"} 1.0' in metrics
    assert len(scheduler.adds) == 1


async def test_a_refusal_counts_neither_as_a_request_nor_toward_the_limit(
    settings: GatewaySettings,
    tokenizer: Tokenizer,
    scheduler: FakeScheduler,
    say: Callable[..., list[int]],
) -> None:
    limits: dict[str, Any] = {"max_num_requests": 1, "requests_per_minute": 2}
    async with asking(settings, tokenizer, **limits) as http:
        async with full(http, scheduler):
            for _ in range(5):
                assert error_of(await http.post(CHAT, json=BODY), 429)["code"] == "overloaded"
        await scheduler.aborts.get()
        # A request that is wrong takes nothing either.
        for _ in range(3):
            assert (await http.post(CHAT, json={})).status_code == 400
        say("x")
        assert (await http.post(CHAT, json=BODY)).status_code == 200
        refused = await http.post(CHAT, content=b"{")
        assert error_of(refused, 429)["code"] == "rate_limit_exceeded"
