"""Administration through the gateway, with real schedulers and fake workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.gateway.harness import Start, error_of
from tests.scheduler.conftest import worker, worker_port
from tests.scheduler.fake_services import FakeWorkerServicer, serve_worker
from tests.scheduler.fake_worker import FakeWorker
from tests.scheduler.test_service import serving as serving_scheduler

__all__ = ["worker", "worker_port"]
KEY, ADMINS = {"authorization": "Bearer admin-key"}, ["root:admin-key"]


@pytest.fixture
async def http(start: Start, worker_port: int) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving_scheduler(worker_port, hang_seconds=0.3) as address,
        start(schedulers=[address], admin_keys=ADMINS) as gateway,
    ):
        yield gateway.http


async def stats(http: httpx.AsyncClient) -> Any:
    response = await http.get("/admin/stats", headers=KEY)
    assert response.status_code == 200, response.text
    return response.json()


async def until_figure(http: httpx.AsyncClient, name: str, value: float) -> None:
    while (await stats(http))[name] != value:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def ask(http: httpx.AsyncClient, headers: Any = None, **options: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 3, **options}
    return await http.post("/v1/completions", json=body, headers=headers)


async def test_a_late_pause_ends(http: httpx.AsyncClient, worker: FakeWorkerServicer) -> None:
    worker.may_run.clear()
    running = asyncio.create_task(ask(http))
    await until_figure(http, "num_running", 1)
    late = await http.post("/admin/pause?mode=wait&timeout_seconds=1", headers=KEY)
    assert late.status_code == 504
    await until_figure(http, "is_paused", False)
    worker.may_run.set()
    assert (await running).status_code == 200


LONG_NAME, LARGE = "a" * 129, "9" * 5000


async def test_wrong_parameters_are_named(http: httpx.AsyncClient) -> None:
    # The policy is fcfs, so that even 1 is wrong.
    priorities = ["", *(f"&priority={text}" for text in (LARGE, "1.5", "1073741825", "1"))]
    for param, queries in {
        "mode": ["pause?mode=stop"],
        "timeout_seconds": ["pause?timeout_seconds=0", "pause?timeout_seconds=x"],
        "request_id": ["priority?priority=1", f"priority?request_id={LONG_NAME}&priority=1"],
        "priority": [f"priority?request_id=a{priority}" for priority in priorities],
    }.items():
        for query in queries:
            error = error_of(await http.post(f"/admin/{query}", headers=KEY), 400)
            assert error["param"] == param, query
            assert error["message"].startswith(f"{param}: ")


async def test_a_request_in_progress_becomes_urgent(start: Start) -> None:
    """Two gateways, and two schedulers that honour priorities and run one request at a time."""
    ended: list[str] = []

    async def run(name: str) -> None:
        headers = {"x-request-id": name}
        assert (await ask(first, headers=headers, n=2)).status_code == 200
        ended.append(name)

    async def change(http: httpx.AsyncClient, name: str, priority: int) -> httpx.Response:
        url = f"/admin/priority?request_id={name}&priority={priority}"
        return await http.post(url, headers=KEY)

    async with AsyncExitStack() as stack:
        workers = [FakeWorkerServicer(FakeWorker()) for _ in range(2)]
        addresses = []
        for each in workers:
            port = await stack.enter_async_context(serve_worker(each))
            options: Any = {"policy": "priority", "max_num_seqs": 1}
            addresses.append(await stack.enter_async_context(serving_scheduler(port, **options)))
            each.may_run.clear()
        settings: Any = {"schedulers": addresses, "admin_keys": ADMINS, "max_num_requests": 16}
        started = [await stack.enter_async_context(start(**settings)) for _ in range(2)]
        first, second = (gateway.http for gateway in started)
        async with asyncio.TaskGroup() as tasks:
            for number, name in enumerate(["first", "second", "third", "fourth"]):
                tasks.create_task(run(name))
                # The choices of a request are spread over both schedulers.
                await until_figure(first, "num_waiting", 2 * number)
                await until_figure(first, "num_running", 2)
            changed = await change(first, "fourth", -1)
            assert changed.json() == {"request_id": "fourth", "priority": -1, "num_choices": 2}
            # Through a gateway that did not take the request.
            changed = await change(second, "second", 1)
            assert (changed.status_code, changed.json()["num_choices"]) == (200, 2)
            for each in workers:
                each.may_run.set()
        assert ended[-1] == "second"
        assert ended.index("fourth") < ended.index("third")
        error = error_of(await change(first, "first", 1), 404)
        assert (error["param"], error["code"]) == ("request_id", "request_not_found")
