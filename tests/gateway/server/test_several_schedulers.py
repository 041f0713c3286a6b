"""The gateway in front of two schedulers, as its clients and operators see it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer as Backend

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.network.server import GrpcServer
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import script_of, served, until
from tests.gateway.fake_scheduler import USER, FakeScheduler, start_scheduler, tokens

TEXT = "The quick brown fox jumps over the lazy dog."
ADMIN = {"authorization": "Bearer admin-key"}


class Pair:
    """Two fake schedulers."""

    def __init__(self, backend: Backend) -> None:
        script = script_of(backend, TEXT, width=3, accepted=[2, 2])
        self.fakes = [FakeScheduler(backend.get_vocab_size(), script=script) for _ in range(2)]
        self.servers: list[GrpcServer] = []

    async def start(self) -> list[str]:
        for fake in self.fakes:
            server, fake.port = await start_scheduler(fake)
            self.servers.append(server)
        return [self.address(index) for index in range(2)]

    def address(self, index: int) -> str:
        return f"127.0.0.1:{self.fakes[index].port}"

    async def kill(self, index: int) -> None:
        await self.servers[index].server.stop(None)


@pytest.fixture
async def pair(backend: Backend) -> AsyncIterator[Pair]:
    made = Pair(backend)
    await made.start()
    yield made
    for index in range(2):
        await made.kill(index)


@pytest.fixture
async def http(
    pair: Pair, tokenizer: Tokenizer, model_directory: Path
) -> AsyncIterator[httpx.AsyncClient]:
    settings = GatewaySettings(
        model=str(model_directory),
        schedulers=[pair.address(index) for index in range(2)],
        api_keys=["client:key"],
        admin_keys=["root:admin-key"],
    )
    async with served(settings, tokenizer) as client:
        client.headers.update(ADMIN)
        await until_sound(client, 2)
        yield client


async def until_sound(http: httpx.AsyncClient, number: int) -> httpx.Response:
    while True:
        health = await http.get("/health")
        if health.json()["schedulers"]["sound"] == number:
            return health
        await asyncio.sleep(0.01)


async def test_an_answer_goes_on_when_its_scheduler_is_lost(
    http: httpx.AsyncClient, pair: Pair
) -> None:
    for fake in pair.fakes:
        fake.hold_behind = 2
    text, usage = "", None
    async with AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="key") as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=USER,
            prediction={"type": "content", "content": TEXT},
            stream=True,
            stream_options={"include_usage": True},
        )
        num_chunks = 0
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                num_chunks += bool(choice.delta.content)
            if num_chunks == 2 and all(fake.hold_behind for fake in pair.fakes):
                index = next(index for index, fake in enumerate(pair.fakes) if fake.adds)
                pair.fakes[1 - index].hold_behind = None
                await pair.kill(index)
    assert text == TEXT
    assert usage is not None
    (add,) = pair.fakes[1 - index].adds
    assert usage.completion_tokens > len(tokens(add.output_token_ids)) == 6
    details: Any = usage.completion_tokens_details
    by_source = details.model_extra["tokens_by_source"]
    assert sum(by_source.values()) == usage.completion_tokens
    assert details.accepted_prediction_tokens == by_source["prediction"] == 4
    metrics = (await http.get("/metrics")).text
    assert "optimist_gateway_resumed_requests_total 1.0" in metrics
    assert (
        f'optimist_gateway_scheduler_connected{{scheduler="{pair.address(index)}"}} 0.0' in metrics
    )


async def test_one_scheduler_is_enough_to_be_ready(http: httpx.AsyncClient, pair: Pair) -> None:
    await pair.kill(0)
    health = await until_sound(http, 1)
    assert health.status_code == 200
    assert health.json()["schedulers"] == {"known": 2, "connected": 1, "sound": 1}
    assert (await http.get("/ready")).status_code == 200
    await pair.kill(1)
    health = await until_sound(http, 0)
    assert health.status_code == 503
    for index in range(2):
        assert pair.address(index) in health.json()["reason"]
    assert (await http.get("/live")).status_code == 200


async def test_a_hung_engine_is_no_reason_to_end_the_gateway_beside_another(
    http: httpx.AsyncClient, pair: Pair
) -> None:
    await pair.servers[0].set_alive(alive=False)
    assert (await until_sound(http, 1)).status_code == 200
    assert (await http.get("/live")).status_code == 200
    await pair.servers[1].set_alive(alive=False)
    assert (await until_sound(http, 0)).json()["reason"] == "the engine hangs"
    assert (await http.get("/live")).status_code == 503


async def test_a_pause_goes_to_all_schedulers(http: httpx.AsyncClient, pair: Pair) -> None:
    assert (await http.post("/admin/pause")).json() == {"status": "paused", "mode": "keep"}
    assert (await http.post("/admin/resume")).json() == {"status": "running"}
    assert [fake.pauses for fake in pair.fakes] == [[True, False]] * 2


async def test_a_pause_tells_which_scheduler_failed(http: httpx.AsyncClient, pair: Pair) -> None:
    await pair.kill(1)
    paused = await http.post("/admin/pause")
    assert paused.status_code == 503
    message = paused.json()["error"]["message"]
    assert f"the scheduler at {pair.address(1)} is not reached" in message
    assert f"done at {pair.address(0)}" in message
    assert pair.fakes[0].pauses == [True]


async def test_figures_are_those_of_all_and_of_each(http: httpx.AsyncClient, pair: Pair) -> None:
    for number, fake in enumerate(pair.fakes, 1):
        fake.stats.num_running = number
        fake.stats.num_accepted_at_positions[:] = [1] * number
        fake.stats.is_paused = number == 1
    figures = (await http.get("/admin/stats")).json()
    assert (figures["num_running"], figures["num_accepted_at_positions"]) == (3, [2, 1])
    assert figures["is_paused"] is False
    assert figures["schedulers"][pair.address(1)]["num_running"] == 2
    await pair.kill(1)
    figures = (await http.get("/admin/stats")).json()
    assert figures["num_running"] == 1
    assert "is not reached" in figures["schedulers"][pair.address(1)]["error"]


async def test_a_priority_goes_where_it_is_honoured(
    pair: Pair, tokenizer: Tokenizer, model_directory: Path
) -> None:
    pair.fakes[0].policy = scheduler_pb2.SCHEDULING_POLICY_FCFS
    pair.fakes[1].policy = scheduler_pb2.SCHEDULING_POLICY_PRIORITY
    addresses = [pair.address(index) for index in range(2)]
    settings = GatewaySettings(model=str(model_directory), schedulers=addresses)
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 3, "n": 4, "priority": 1}
    async with served(settings, tokenizer) as http:
        await until_sound(http, 2)
        assert (await http.post("/v1/completions", json=body)).status_code == 200
        assert [len(fake.adds) for fake in pair.fakes] == [0, 4]
        await pair.kill(1)
        await until_sound(http, 1)
        refused = (await http.post("/v1/completions", json=body)).json()["error"]
    assert refused["param"] == "priority"


async def test_a_changed_priority_is_kept_at_another_scheduler(
    http: httpx.AsyncClient, pair: Pair
) -> None:
    for fake in pair.fakes:
        fake.scripts = [replace(fake.script, priority=-7, break_stream=True)]
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 99}
    headers = {"x-request-id": "mine"}
    response = await http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200
    adds = sorted((add for fake in pair.fakes for add in fake.adds), key=lambda add: add.request_id)
    assert adds[0].request_id == response.json()["id"]
    assert [add.priority for add in adds] == [0, -7, -7]
    assert all(set(add.names) == {"mine", response.json()["id"]} for add in adds)


async def test_short_prompts_are_spread(http: httpx.AsyncClient, pair: Pair) -> None:
    for fake in pair.fakes:
        fake.hold_behind = 0
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 3, "n": 4}
    asked = asyncio.create_task(http.post("/v1/completions", json=body))
    await until(lambda: [len(fake.adds) for fake in pair.fakes] == [2, 2])
    for index in range(2):
        await pair.kill(index)
    asked.cancel()
