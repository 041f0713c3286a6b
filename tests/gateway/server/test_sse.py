"""Streamed answers on their way: parts are joined, silence is filled, a client may go away."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.api.openai.connection_body import ConnectionBody, Outbox
from tests.gateway.fake_scheduler import Script, Step
from tests.gateway.harness import BODIES, CHAT, Gateway, Start

STREAM = BODIES[CHAT] | {"stream": True}


async def test_a_reader_that_stands_still_is_given_up(gateway: Gateway) -> None:
    # Each step is large, so that the buffers of the sockets are soon full.
    gateway.scheduler.script = Script(steps=[Step([20] * 2000)], forever=True)
    body = STREAM | {"return_token_ids": True}
    async with gateway.http.stream("POST", CHAT, json=body) as response:
        assert response.status_code == 200
        handle = await asyncio.wait_for(gateway.scheduler.aborts.get(), 20)
        assert handle == gateway.adds[0].handle
        text = "".join([part async for part in response.aiter_text()])
    assert '"code":"slow_reader"' in text
    assert "[DONE]" not in text


@pytest.fixture
async def quick(start: Start) -> AsyncIterator[Gateway]:
    """A gateway that soon comments on silence."""
    async with start(keep_alive_seconds=0.1) as gateway:
        yield gateway


async def test_comments_stand_between_events(quick: Gateway) -> None:
    quick.say("The quick brown", pause_seconds=0.25)
    response = await quick.post(CHAT, stream=True)
    assert response.status_code == 200
    *blocks, rest = response.text.split("\n\n")
    assert ": keep-alive" in blocks
    *events, end = [block.removeprefix("data: ") for block in blocks if block != ": keep-alive"]
    assert (end, rest) == ("[DONE]", "")
    texts = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(texts) == "The quick brown"


async def test_an_answer_that_is_long_in_coming_is_announced(quick: Gateway) -> None:
    quick.scheduler.script = Script(hang=True)
    async with quick.http.stream("POST", CHAT, json=STREAM) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert await anext(response.aiter_text()) == ": keep-alive\n\n"


async def test_an_error_after_a_comment_is_an_event(quick: Gateway) -> None:
    failed = scheduler_pb2.FINISH_REASON_ERROR
    # The first step says nothing and the error comes with the second one.
    steps = [Step(), Step()]
    quick.scheduler.script = Script(steps, failed, "out of memory", pause_seconds=0.4)
    response = await quick.post(CHAT, stream=True)
    assert response.status_code == 200
    *comments, event, rest = response.text.split("\n\n")
    assert (set(comments), rest) == ({": keep-alive"}, "")
    assert json.loads(event.removeprefix("data: "))["error"]["message"] == "out of memory"


class Connection:
    """Takes note of what is written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False
        self.transport = self

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.is_closed


def connected(number: int, interval: float = 0.0) -> tuple[list[Connection], list[ConnectionBody]]:
    outbox, connections = Outbox(interval), [Connection() for _ in range(number)]
    return connections, [ConnectionBody(cast("Any", each), outbox) for each in connections]


async def test_what_one_turn_says_takes_one_write_for_each_connection() -> None:
    connections, bodies = connected(3)
    for part in (b"ab", b"c"):
        for body in bodies[:2]:
            body.write(part)
    assert not any(connection.written for connection in connections)
    await asyncio.sleep(0)
    assert [connection.written for connection in connections] == [[b"3\r\nabc\r\n"]] * 2 + [[]]
    bodies[0].write(b"d" * 17)
    await asyncio.sleep(0)
    assert connections[0].written[1:] == [b"11\r\n" + b"d" * 17 + b"\r\n"]


async def test_what_comes_too_soon_waits_and_what_comes_first_or_last_does_not() -> None:
    # Less than the machine has run: what comes first counts as later than the clock's start.
    (connection, other), (body, other_body) = connected(2, interval=60.0)
    assert body.last_write < 0
    body.write(b"a")
    await asyncio.sleep(0)
    assert connection.written == [b"1\r\na\r\n"]
    assert body.last_write > 0
    for part in (b"b", b"c"):
        body.write(part)
        await asyncio.sleep(0.01)
    assert len(connection.written) == 1
    # One that waits keeps no other waiting.
    other_body.write(b"x")
    await asyncio.sleep(0)
    assert other.written == [b"1\r\nx\r\n"]
    body.flush()
    body.flush()
    assert connection.written[1:] == [b"2\r\nbc\r\n"]
