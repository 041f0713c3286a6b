"""A client that goes away, one that reads slowly, and streams in which nothing is said."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import served, until
from tests.gateway.fake_scheduler import FakeScheduler, Say, Script, Step

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
STREAM = BODY | {"stream": True}


async def leave(url: str, *, stream: bool, after: bytes | None) -> None:
    """Sends a request and closes the connection once `after` was received."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(BODY | {"stream": stream}).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    if after is not None:
        await reader.readuntil(after)
    writer.close()
    await writer.wait_closed()


async def running(http: httpx.AsyncClient) -> float:
    text = (await http.get("/metrics")).text
    (line,) = [
        one for one in text.splitlines() if one.startswith("optimist_gateway_requests_running")
    ]
    return float(line.split()[1])


async def until_nothing_runs(http: httpx.AsyncClient) -> None:
    while await running(http):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("after", [b'"content":"The"', None])
async def test_a_stream_that_nobody_reads_is_aborted(
    url: str, http: httpx.AsyncClient, scheduler: FakeScheduler, say: Say, after: bytes | None
) -> None:
    if after is None:
        scheduler.script = Script(hang=True)
    else:
        say("The", hang=True)
        # The end-of-answer token would not be sent by a request that goes on.
        scheduler.script.steps = scheduler.script.steps[:-1]
    leaving = asyncio.create_task(leave(url, stream=True, after=after))
    if after is None:
        await until(lambda: bool(scheduler.adds))
    await leaving
    handle = await asyncio.wait_for(scheduler.aborts.get(), 10)
    assert handle == scheduler.adds[0].handle
    await until_nothing_runs(http)
    assert 'outcome="disconnected"' in (await http.get("/metrics")).text


async def test_a_whole_answer_that_nobody_waits_for_is_aborted(
    url: str, http: httpx.AsyncClient, scheduler: FakeScheduler, say: Say
) -> None:
    say("The quick", forever=True, pause_seconds=0.001)
    connection = asyncio.create_task(leave_when_added(url, scheduler))
    assert await asyncio.wait_for(scheduler.aborts.get(), 10) == scheduler.adds[0].handle
    await connection
    await until_nothing_runs(http)


async def leave_when_added(url: str, scheduler: FakeScheduler) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as http:
        asking = asyncio.create_task(http.post(CHAT, json=BODY, timeout=60))
        await until(lambda: bool(scheduler.adds))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_reader_that_stands_still_is_given_up(
    http: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    # Each step is large, so that the buffers of the sockets are soon full.
    scheduler.script = Script(steps=[Step([20] * 2000)], forever=True)
    async with http.stream("POST", CHAT, json=STREAM | {"return_token_ids": True}) as response:
        assert response.status_code == 200
        handle = await asyncio.wait_for(scheduler.aborts.get(), 20)
        assert handle == scheduler.adds[0].handle
        text = "".join([part async for part in response.aiter_text()])
    assert '"code":"slow_reader"' in text
    assert "[DONE]" not in text


@pytest.fixture
async def quick(
    settings: GatewaySettings, tokenizer: Tokenizer
) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway that soon comments on silence."""
    async with served(settings, tokenizer, keep_alive_seconds=0.1) as client:
        yield client


async def test_comments_stand_between_events(
    quick: httpx.AsyncClient, say: Callable[..., list[int]]
) -> None:
    say("The quick brown", pause_seconds=0.25)
    response = await quick.post(CHAT, json=STREAM)
    assert response.status_code == 200
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert ": keep-alive" in blocks
    events = [block for block in blocks if block != ": keep-alive"]
    assert events.pop() == "data: [DONE]"
    texts = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
    assert "".join(text.get("content", "") for text in texts) == "The quick brown"


async def test_an_answer_that_is_long_in_coming_is_announced(
    quick: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    scheduler.script = Script(hang=True)
    async with quick.stream("POST", CHAT, json=STREAM) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        async for text in response.aiter_text():
            assert text == ": keep-alive\n\n"
            break


async def test_an_error_behind_a_comment_is_an_event(
    quick: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    failed = scheduler_pb2.FINISH_REASON_ERROR
    # The first step says nothing and the error comes with the second one.
    scheduler.script = Script([Step(), Step()], failed, "out of memory", pause_seconds=0.4)
    response = await quick.post(CHAT, json=STREAM)
    assert response.status_code == 200
    *comments, event, rest = response.text.split("\n\n")
    assert (set(comments), rest) == ({": keep-alive"}, "")
    assert json.loads(event.removeprefix("data: "))["error"]["message"] == "out of memory"


async def test_an_error_before_any_comment_has_its_own_status(
    quick: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    scheduler.script = Script([], scheduler_pb2.FINISH_REASON_ERROR, "out of memory")
    response = await quick.post(CHAT, json=STREAM)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "out of memory"
