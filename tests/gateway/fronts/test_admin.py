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


async def ask(http: httpx.AsyncClient, **options: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 3, **options}
    return await http.post("/v1/completions", json=body)


async def test_a_pause_holds_requests_until_it_ends(http: httpx.AsyncClient) -> None:
    assert (await stats(http))["is_paused"] is False
    paused = await http.post("/admin/pause?mode=wait", headers=KEY)
    assert (paused.status_code, paused.json()) == (200, {"status": "paused", "mode": "wait"})
    figures = await stats(http)
    assert figures["is_paused"] is True
    assert figures["num_plans"] == 0
    waiting = asyncio.create_task(ask(http))
    await until_figure(http, "num_waiting", 1)
    assert not waiting.done()
    resumed = await http.post("/admin/resume", headers=KEY)
    assert resumed.json() == {"status": "running"}
    assert (await waiting).status_code == 200
    assert (await stats(http))["num_plans"] > 0


async def test_a_pause_that_does_not_come_to_rest_in_time_is_taken_back(
    http: httpx.AsyncClient, worker: FakeWorkerServicer
) -> None:
    worker.may_run.clear()
    running = asyncio.create_task(ask(http))
    await until_figure(http, "num_running", 1)
    late = await http.post("/admin/pause?mode=wait&timeout_seconds=1", headers=KEY)
    assert late.status_code == 504
    await until_figure(http, "is_paused", False)
    worker.may_run.set()
    assert (await running).status_code == 200


LONG_NAME, LARGE = "a" * 129, "9" * 5000


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("pause?mode=stop", "mode"),
        ("pause?timeout_seconds=0", "timeout_seconds"),
        ("pause?timeout_seconds=x", "timeout_seconds"),
        ("priority?priority=1", "request_id"),
        (f"priority?request_id={LONG_NAME}&priority=1", "request_id"),
        ("priority?request_id=a", "priority"),
        (f"priority?request_id=a&priority={LARGE}", "priority"),
        ("priority?request_id=a&priority=1.5", "priority"),
        ("priority?request_id=a&priority=1073741825", "priority"),
        # The policy is fcfs.
        ("priority?request_id=a&priority=1", "priority"),
    ],
    ids=lambda one: one[:40],
)
async def test_wrong_parameters_are_named(http: httpx.AsyncClient, query: str, param: str) -> None:
    error = error_of(await http.post(f"/admin/{query}", headers=KEY), 400)
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


class Priorities:
    """Two gateways, and two schedulers that honour priorities and run one request at a time."""

    def __init__(self, gateways: list[httpx.AsyncClient], workers: list[FakeWorkerServicer]):
        self.gateways, self.workers = gateways, workers
        self.ended: list[str] = []
        """Names of requests, in the order in which they ended."""

    async def ask(self, name: str, gateway: int = 0, **options: Any) -> Any:
        body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 3, **options}
        headers = {"x-request-id": name}
        response = await self.gateways[gateway].post("/v1/completions", json=body, headers=headers)
        assert response.status_code == 200, response.text
        self.ended.append(name)
        return response.json()

    async def change(self, name: str, priority: int, gateway: int = 0) -> httpx.Response:
        url = f"/admin/priority?request_id={name}&priority={priority}"
        return await self.gateways[gateway].post(url, headers=KEY)

    def hold(self) -> None:
        for each in self.workers:
            each.may_run.clear()

    def go_on(self) -> None:
        for each in self.workers:
            each.may_run.set()


@pytest.fixture
async def urgent(start: Start) -> AsyncIterator[Priorities]:
    async with AsyncExitStack() as stack:
        workers = [FakeWorkerServicer(FakeWorker()) for _ in range(2)]
        addresses = []
        for each in workers:
            port = await stack.enter_async_context(serve_worker(each))
            options: Any = {"policy": "priority", "max_num_seqs": 1}
            addresses.append(await stack.enter_async_context(serving_scheduler(port, **options)))
        settings: Any = {"schedulers": addresses, "admin_keys": ADMINS, "max_num_requests": 16}
        gateways = [(await stack.enter_async_context(start(**settings))).http for _ in range(2)]
        yield Priorities(gateways, workers)


async def test_a_request_in_progress_becomes_urgent(urgent: Priorities) -> None:
    urgent.hold()
    names = ["first", "second", "third", "fourth"]
    async with asyncio.TaskGroup() as tasks:
        for number, name in enumerate(names):
            tasks.create_task(urgent.ask(name, n=2))
            # The choices of a request are spread over both schedulers.
            await until_figure(urgent.gateways[0], "num_waiting", 2 * number)
            await until_figure(urgent.gateways[0], "num_running", 2)
        changed = await urgent.change("fourth", -1)
        assert changed.json() == {"request_id": "fourth", "priority": -1, "num_choices": 2}
        # Through a gateway that did not take the request.
        changed = await urgent.change("second", 1, gateway=1)
        assert (changed.status_code, changed.json()["num_choices"]) == (200, 2)
        urgent.go_on()
    assert urgent.ended[-1] == "second"
    assert urgent.ended.index("fourth") < urgent.ended.index("third")
    gone = await urgent.change("first", 1)
    error = gone.json()["error"]
    assert (gone.status_code, error["param"], error["code"]) == (
        404,
        "request_id",
        "request_not_found",
    )
