"""Limits of keys and of the gateway, as clients see them; refusals before bodies are read."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import combinations
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.core.request import cache_salt
from tests.gateway.fake_scheduler import Script
from tests.gateway.harness import BODIES, CHAT, Gateway, Start, bearer, error_of, until
from tests.gateway.server.raw import error_of as raw_error_of
from tests.gateway.server.raw import exchange

KEYS = ["ann:key-a", "bob:key-b"]


def retry_seconds(response: httpx.Response) -> float:
    milliseconds = int(response.headers["retry-after-ms"])
    assert int(response.headers["retry-after"]) == -(-milliseconds // 1000)
    assert 1000 <= milliseconds <= 60_000
    return milliseconds / 1000


async def test_tokens_of_one_key_are_limited_and_a_refusal_costs_none(start: Start) -> None:
    async with start(api_keys=KEYS, tokens_per_minute=5) as gateway:
        gateway.say("", reason=scheduler_pb2.FINISH_REASON_OVERLOADED)
        for _ in range(3):
            assert (await gateway.refused(CHAT, 429, key="key-a"))["code"] == "overloaded"
        gateway.say("The quick brown fox")
        await gateway.answer(CHAT, key="key-a")
        refused = await gateway.post(CHAT, key="key-a")
        assert error_of(refused, 429)["code"] == "rate_limit_exceeded"
        assert retry_seconds(refused) > 0
        await gateway.answer(CHAT, key="key-b")


@given(st.lists(st.tuples(st.text(), st.text()), min_size=2, max_size=4, unique=True))
def test_clients_share_with_themselves_alone(asked: list[tuple[str, str]]) -> None:
    named = [(f"key {client}".replace("\0", ""), salt) for client, salt in asked]
    for one, other in combinations(named, 2):
        assert (cache_salt(*one) == cache_salt(*other)) == (one == other)
    assert all(len(cache_salt(*one)) == 64 for one in named)


async def test_keys_share_no_cached_prompts_with_each_other(start: Start) -> None:
    async with start(api_keys=KEYS) as gateway:
        gateway.say("x")
        for key in ("key-a", "key-b", "key-a"):
            await gateway.answer(CHAT, key=key, cache_salt="team")
        ann, bob, ann_again = (add.cache_salt for add in gateway.adds)
    assert ann == ann_again != bob
    assert "team" not in (ann, bob)


HEAD = (
    f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    "authorization: Bearer key-a\r\n"
).encode()
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
LIVE = b"GET /live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
LATE = HEAD + b"content-length: 4000\r\n\r\n"


@asynccontextmanager
async def full(start: Start, **limits: Any) -> AsyncIterator[Gateway]:
    """A gateway whose limit is one request, and which runs one for the time of the block."""
    limits |= {"api_keys": ["ann:key-a"], "max_num_requests": 1}
    async with start(**limits) as gateway, filled(gateway):
        yield gateway


@asynccontextmanager
async def filled(gateway: Gateway) -> AsyncIterator[None]:
    gateway.scheduler.script = Script(hang=True)
    running = asyncio.create_task(gateway.post(CHAT, key="key-a"))
    await until(lambda: len(gateway.adds) == 1)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_refusal_does_not_wait_for_the_body(start: Start) -> None:
    async with full(start, max_body_bytes=5_000, read_seconds=0.5) as gateway:
        data = json.dumps(BODIES[CHAT]).encode()
        whole = HEAD + b"content-length: %d\r\n\r\n" % len(data) + data
        # The connection stays, and the bodies are thrown away.
        chunked = CHUNKED + b"3\r\nabc\r\n" * 20 + b"0\r\n\r\n"
        answers = await exchange(gateway, whole, chunked, whole, LIVE)
        assert answers.count(b"HTTP/1.1 429 ") == 3
        assert answers.count(b"HTTP/1.1 200 ") == 1
        # That is bounded in time and in size, and who asks before he sends one need not send it.
        asks = LATE.replace(b"content-length", b"expect: 100-continue\r\ncontent-length")
        endless = [b"1000\r\n" + b" " * 4096 + b"\r\n"] * 2000
        for parts in ([LATE, b" "], [CHUNKED, *endless], [asks]):
            answer = await exchange(gateway, *parts)
            assert raw_error_of(answer, 429)["code"] == "overloaded"
            assert (b"connection: close" in answer) is (parts == [asks])


async def test_keys_come_first_then_room_then_the_body(start: Start) -> None:
    async with full(start) as gateway:
        for number, path in enumerate(BODIES, 1):
            unknown = await gateway.http.post(path, content=b"{", headers=bearer("key-c"))
            assert error_of(unknown, 401)["code"] == "invalid_api_key"
            refused = await gateway.http.post(path, content=b"{", headers=bearer("key-a"))
            assert error_of(refused, 429)["code"] == "overloaded"
            # What is not limited is answered.
            models = await gateway.http.get("/v1/models", headers=bearer("key-a"))
            assert models.status_code == 200
            metrics = (await gateway.http.get("/metrics", headers=bearer("key-a"))).text
            assert f'requests_total{{endpoint="{path}",outcome="429"}} 1.0' in metrics
            assert f'requests_refused_total{{reason="overloaded"}} {number}.0' in metrics
        assert len(gateway.adds) == 1


async def test_a_refusal_counts_neither_as_a_request_nor_toward_the_limit(start: Start) -> None:
    async with start(max_num_requests=1, requests_per_minute=2) as gateway:
        async with filled(gateway):
            for _ in range(5):
                assert (await gateway.refused(CHAT, 429))["code"] == "overloaded"
        await gateway.scheduler.aborts.get()
        await gateway.until_nothing_runs()
        # A request that is wrong takes nothing either.
        for _ in range(3):
            await gateway.refused(CHAT, model=None)
        gateway.say("x")
        await gateway.answer(CHAT)
        refused = await gateway.http.post(CHAT, content=b"{")
        assert error_of(refused, 429)["code"] == "rate_limit_exceeded"
        # What a client may use in a minute comes again bit by bit.
        assert 20 <= retry_seconds(refused) <= 30
