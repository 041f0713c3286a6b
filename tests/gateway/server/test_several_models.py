"""The gateway with two models, as its clients and operators see it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tokenizers import Tokenizer as Backend

from optimist.scheduler.v1 import scheduler_pb2
from optimist_client import AsyncClient, OptimistError
from optimist_common.network.server import GrpcServer
from optimist_gateway.schedulers.requests import UNREACHED
from optimist_gateway.text.tokenizer import load_tokenizer
from tests.gateway.conftest import save_model
from tests.gateway.fake_scheduler import FakeScheduler, start_scheduler
from tests.gateway.harness import BODIES, CHAT, Gateway, Start, script_of
from tests.stack import free_port

TEMPLATE = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
TEMPLATE += "{% if tools %}<tool_call>{% endif %}"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
ADMIN_KEY = "admin-key"
VOCAB_SIZE = 265


class Second(NamedTuple):
    """The model `org/second`, which has other tokens, another template and another format."""

    gateway: Gateway
    scheduler: FakeScheduler
    server: GrpcServer
    backend: Backend

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.scheduler.port}"

    def say(self, text: str) -> None:
        self.scheduler.script = script_of(self.backend, text)


@pytest.fixture
async def second(start: Start, tmp_path: Path) -> AsyncIterator[Second]:
    directory = tmp_path / "second"
    save_model(directory, VOCAB_SIZE, TEMPLATE)
    backend = Backend.from_file(str(directory / "tokenizer.json"))
    fake = FakeScheduler(vocab_size=VOCAB_SIZE, max_model_len=1000, max_draft_tokens=3)
    fake.policy = scheduler_pb2.SCHEDULING_POLICY_PRIORITY
    server, fake.port = await start_scheduler(fake)
    model = {"model": str(directory), "name": "org/second"}
    first = FakeScheduler(policy=scheduler_pb2.SCHEDULING_POLICY_FCFS)
    async with start(
        first,
        others=[load_tokenizer(str(directory))],
        models=[{**model, "schedulers": [f"127.0.0.1:{fake.port}"]}],
        admin_keys=[f"root:{ADMIN_KEY}"],
        grpc_port=free_port(),
    ) as gateway:
        gateway.http.headers["x-api-key"] = ADMIN_KEY
        await until_served(gateway, 2)
        yield Second(gateway, fake, server, backend)
    await server.stop()


async def until_served(gateway: Gateway, number: int) -> Any:
    """Waits until so many models have a scheduler; returns the health document."""
    while True:
        health = (await gateway.http.get("/health")).json()
        if health["schedulers"]["connected"] == number:
            return health
        await asyncio.sleep(0.01)


async def test_tool_calls_are_read_in_the_format_of_the_model(second: Second) -> None:
    second.say(CALL)
    second.gateway.say(CALL)
    for name, is_call in (("tiny", False), ("org/second", True)):
        answer = await second.gateway.answer(CHAT, model=name, tools=[TOOL])
        assert ("tool_calls" in answer["choices"][0]["message"]) is is_call


async def test_the_grpc_api_goes_by_names_too(second: Second) -> None:
    second.gateway.say("The quick")
    second.say("brown fox")
    async with AsyncClient(second.gateway.grpc_address) as client:
        assert (await client.generate("Hello").result()).text == "The quick"
        assert (await client.generate("Hello", model="org/second").result()).text == "brown fox"
        models = await client.models()
        assert [one.name for one in models] == ["tiny", "org/second"]
        vocab_sizes = [second.gateway.scheduler.vocab_size, VOCAB_SIZE]
        assert [one.vocab_size for one in models] == vocab_sizes
        assert await client.model("org/second") == models[1]
        with pytest.raises(OptimistError, match="NOT_FOUND"):
            await client.generate("Hello", model="none").result()
        await second.server.server.stop(None)
        await until_served(second.gateway, 1)
        assert [one.name for one in await client.models()] == ["tiny"]
        with pytest.raises(OptimistError, match="UNAVAILABLE"):
            await client.model("org/second")


async def test_a_model_without_schedulers_changes_nothing_for_the_others(second: Second) -> None:
    gateway = second.gateway
    gateway.say("The quick")
    await second.server.server.stop(None)
    health = await until_served(gateway, 1)
    assert list(health["unavailable_models"]) == ["org/second"]
    assert health["unavailable_models"]["org/second"] == UNREACHED
    for path in BODIES:
        error = await gateway.refused(path, 503, model="org/second")
        assert error["code"] == "scheduler_unavailable"
        await gateway.answer(path)
    assert (await gateway.http.get("/ready")).status_code == 200
    await gateway.servers[0].server.stop(None)
    health = await until_served(gateway, 0)
    assert health["reason"] == f"tiny: {UNREACHED}; org/second: {UNREACHED}"
    assert "unavailable_models" not in health
    statuses = [(await gateway.http.get(f"/{one}")).status_code for one in ("ready", "live")]
    assert statuses == [503, 200]
    # The other one comes first.
    server, _ = await start_scheduler(second.scheduler, second.scheduler.port)
    health = await until_served(gateway, 1)
    assert list(health["unavailable_models"]) == ["tiny"]
    second.say("brown fox")
    await gateway.answer(CHAT, model="org/second")
    await gateway.refused(CHAT, 503)
    await server.stop()
