"""Streamed answers on their way: silence is filled, and a client may go away."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from optimist.scheduler.v1 import scheduler_pb2
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
