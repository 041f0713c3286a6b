"""Limits of keys and of the gateway, as clients see them."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import asking, until
from tests.gateway.fake_scheduler import FakeScheduler, Script
from tests.gateway.server.test_authentication import BODY, CHAT, bearer, error_of

KEYS = ["ann:key-a", "bob:key-b"]


async def ask(http: httpx.AsyncClient, key: str, **options: Any) -> httpx.Response:
    return await http.post(CHAT, json=BODY | options, headers=bearer(key))


def retry_seconds(response: httpx.Response) -> float:
    milliseconds = int(response.headers["retry-after-ms"])
    assert int(response.headers["retry-after"]) == -(-milliseconds // 1000)
    assert 1000 <= milliseconds <= 60_000
    return milliseconds / 1000


async def test_requests_of_one_key_are_limited(
    settings: GatewaySettings, tokenizer: Tokenizer, say: Callable[..., list[int]]
) -> None:
    say("x")
    async with asking(settings, tokenizer, api_keys=KEYS, requests_per_minute=2) as http:
        statuses = [(await ask(http, "key-a")).status_code for _ in range(2)]
        assert statuses == [200, 200]
        refused = await ask(http, "key-a")
        assert error_of(refused, 429)["code"] == "rate_limit_exceeded"
        assert 20 < retry_seconds(refused) <= 30
        assert (await ask(http, "key-b")).status_code == 200


async def test_tokens_of_one_key_are_limited(
    settings: GatewaySettings, tokenizer: Tokenizer, say: Callable[..., list[int]]
) -> None:
    say("The quick brown fox")
    async with asking(settings, tokenizer, api_keys=KEYS, tokens_per_minute=5) as http:
        assert (await ask(http, "key-a")).status_code == 200
        refused = await ask(http, "key-a")
        assert error_of(refused, 429)["code"] == "rate_limit_exceeded"
        retry_seconds(refused)
        assert (await ask(http, "key-b")).status_code == 200


async def test_what_the_scheduler_refuses_costs_no_tokens(
    settings: GatewaySettings, tokenizer: Tokenizer, say: Callable[..., list[int]]
) -> None:
    say("", reason=scheduler_pb2.FINISH_REASON_OVERLOADED)
    async with asking(settings, tokenizer, api_keys=KEYS, tokens_per_minute=5) as http:
        for _ in range(3):
            assert error_of(await ask(http, "key-a"), 429)["code"] == "overloaded"


async def test_more_answers_than_a_key_may_have_at_a_time_are_refused_for_good(
    settings: GatewaySettings, tokenizer: Tokenizer
) -> None:
    async with asking(settings, tokenizer, api_keys=KEYS, max_num_requests_per_key=2) as http:
        assert error_of(await ask(http, "key-a", n=3), 400)["param"] == "n"


async def test_a_key_leaves_room_for_another(
    settings: GatewaySettings, tokenizer: Tokenizer, scheduler: FakeScheduler
) -> None:
    scheduler.script = Script(hang=True)
    async with asking(settings, tokenizer, api_keys=KEYS) as http:
        running = [asyncio.create_task(ask(http, "key-a")) for _ in range(3)]
        await until(lambda: len(scheduler.adds) == 3)
        refused = await ask(http, "key-a")
        assert error_of(refused, 429)["code"] == "overloaded"
        retry_seconds(refused)
        running.append(asyncio.create_task(ask(http, "key-b")))
        await until(lambda: len(scheduler.adds) == 4)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
