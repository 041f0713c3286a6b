"""Administration through the gateway, with real schedulers and fake workers."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.gateway.harness import Start, error_of
from tests.scheduler.conftest import worker, worker_port
from tests.scheduler.fake_services import FakeWorkerServicer
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


async def until_figure(http: httpx.AsyncClient, name: str, value: float) -> None:
    while (await http.get("/admin/stats", headers=KEY)).json()[name] != value:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_late_pause_ends(http: httpx.AsyncClient, worker: FakeWorkerServicer) -> None:
    worker.may_run.clear()
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 3}
    running = asyncio.create_task(http.post("/v1/completions", json=body))
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
