"""The gateway in front of two schedulers, as its clients and operators see it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from optimist.scheduler.v1 import scheduler_pb2
from tests.gateway.fake_scheduler import FakeScheduler
from tests.gateway.harness import COMPLETIONS, Gateway, Start, script_of

TEXT = "The quick brown fox jumps over the lazy dog."


@asynccontextmanager
async def pair(start: Start, *fakes: FakeScheduler, **settings: Any) -> AsyncIterator[Gateway]:
    """A gateway with two schedulers that say `TEXT`."""
    fakes = fakes or (FakeScheduler(), FakeScheduler())
    settings = {"resume_seconds": 20, "max_num_requests": 256} | settings
    async with start(*fakes, **settings) as gateway:
        for fake in fakes:
            fake.script = script_of(gateway.backend, TEXT, width=3, accepted=[2, 2])
        await until_sound(gateway, 2)
        yield gateway


@pytest.fixture
async def two(start: Start) -> AsyncIterator[Gateway]:
    async with pair(start, admin_keys=["root:admin-key"]) as gateway:
        gateway.http.headers["x-api-key"] = "admin-key"
        yield gateway


def address(gateway: Gateway, index: int) -> str:
    return f"127.0.0.1:{gateway.schedulers[index].port}"


async def kill(gateway: Gateway, index: int) -> None:
    await gateway.servers[index].server.stop(None)


async def until_sound(gateway: Gateway, number: int) -> httpx.Response:
    while True:
        health = await gateway.http.get("/health")
        if health.json()["schedulers"]["sound"] == number:
            return health
        await asyncio.sleep(0.01)


async def test_a_hung_engine_is_no_reason_to_end_the_gateway(two: Gateway) -> None:
    await two.servers[0].set_stuck(stuck=True)
    assert (await until_sound(two, 1)).status_code == 200
    await two.servers[1].set_stuck(stuck=True)
    assert (await until_sound(two, 0)).json()["reason"] == "the engine hangs"
    assert [await status(two, path) for path in ("/ready", "/live")] == [503, 200]
    await two.servers[1].set_stuck(stuck=False)
    assert (await until_sound(two, 1)).status_code == 200


async def status(gateway: Gateway, path: str) -> int:
    return (await gateway.http.get(path)).status_code


async def test_a_pause_goes_to_all_schedulers_or_says_which_failed(two: Gateway) -> None:
    paused = await two.answer("/admin/pause")
    assert paused == {"status": "paused", "mode": "keep"}
    assert await two.answer("/admin/resume") == {"status": "running"}
    assert [fake.pauses for fake in two.schedulers] == [[True, False]] * 2
    await kill(two, 1)
    message = (await two.refused("/admin/pause", 503))["message"]
    assert f"the scheduler at {address(two, 1)} is not reached" in message
    assert f"done at {address(two, 0)}" in message
    assert two.scheduler.pauses == [True, False, True]


async def test_a_priority_goes_where_it_is_honoured(start: Start) -> None:
    policies = (scheduler_pb2.SCHEDULING_POLICY_FCFS, scheduler_pb2.SCHEDULING_POLICY_PRIORITY)
    async with pair(start, *(FakeScheduler(policy=policy) for policy in policies)) as gateway:
        fields = {"max_tokens": 3, "n": 4, "priority": 1}
        await gateway.answer(COMPLETIONS, **fields)
        assert [len(fake.adds) for fake in gateway.schedulers] == [0, 4]
        await kill(gateway, 1)
        await until_sound(gateway, 1)
        assert (await gateway.refused(COMPLETIONS, **fields))["param"] == "priority"


async def test_a_changed_priority_is_kept_at_another_scheduler(two: Gateway) -> None:
    for fake in two.schedulers:
        fake.scripts = [replace(fake.script, priority=-7, break_stream=True)]
    two.http.headers["x-request-id"] = "mine"
    answer = await two.answer(COMPLETIONS, max_tokens=99)
    every = (add for fake in two.schedulers for add in fake.adds)
    adds = sorted(every, key=lambda add: add.request_id)
    assert adds[0].request_id == answer["id"]
    assert [add.priority for add in adds] == [0, -7, -7]
    assert all(set(add.names) == {"mine", answer["id"]} for add in adds)
