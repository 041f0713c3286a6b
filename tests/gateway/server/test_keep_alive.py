"""Streams in which nothing is said for a while."""

import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.server.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import serving, until_healthy
from tests.gateway.fake_scheduler import FakeScheduler, Script, Step

BODY = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello"}],
    "stream": True,
}
CHAT = "/v1/chat/completions"


@pytest.fixture
async def http(settings: GatewaySettings, tokenizer: Tokenizer) -> AsyncIterator[httpx.AsyncClient]:
    quick = settings.model_copy(update={"keep_alive_seconds": 0.1})
    async with (
        serving(quick, tokenizer) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=30) as client,
    ):
        await until_healthy(client)
        yield client


async def test_comments_stand_between_events(
    http: httpx.AsyncClient, say: Callable[..., list[int]]
) -> None:
    say("The quick brown", pause_seconds=0.25)
    response = await http.post(CHAT, json=BODY)
    assert response.status_code == 200
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert ": keep-alive" in blocks
    events = [block for block in blocks if block != ": keep-alive"]
    assert events.pop() == "data: [DONE]"
    texts = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
    assert "".join(text.get("content", "") for text in texts) == "The quick brown"


async def test_an_answer_that_is_long_in_coming_is_announced(
    http: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    scheduler.script = Script(hang=True)
    async with http.stream("POST", CHAT, json=BODY) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        async for text in response.aiter_text():
            assert text == ": keep-alive\n\n"
            break


async def test_an_error_behind_a_comment_is_an_event(
    http: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    failed = scheduler_pb2.FINISH_REASON_ERROR
    # The first step says nothing and the error comes with the second one.
    scheduler.script = Script([Step(), Step()], failed, "out of memory", pause_seconds=0.4)
    response = await http.post(CHAT, json=BODY)
    assert response.status_code == 200
    *comments, event, rest = response.text.split("\n\n")
    assert (set(comments), rest) == ({": keep-alive"}, "")
    assert json.loads(event.removeprefix("data: "))["error"]["message"] == "out of memory"


async def test_an_error_before_any_comment_has_its_own_status(
    http: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    scheduler.script = Script([], scheduler_pb2.FINISH_REASON_ERROR, "out of memory")
    response = await http.post(CHAT, json=BODY)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "out of memory"
