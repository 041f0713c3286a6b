"""The scheduler as it is served: its flags, and its health, which follows its worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2_grpc
from optimist_common.network.channel import open_channel
from optimist_scheduler.__main__ import main
from optimist_scheduler.service.serve import serve
from optimist_scheduler.settings import SchedulerSettings
from tests.common.test_health import until_health
from tests.scheduler.client import PROMPT, Client, add
from tests.scheduler.fake_services import FakeWorkerServicer
from tests.stack import free_port


@asynccontextmanager
async def serving(worker_port: int, **options: Any) -> AsyncIterator[str]:
    port = free_port()
    settings = SchedulerSettings(
        port=port, workers=[f"127.0.0.1:{worker_port}"], proposers=[], **options
    )
    task = asyncio.create_task(serve(settings))
    try:
        await until_health(f"127.0.0.1:{port}", good=True)
        yield f"127.0.0.1:{port}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_worker_that_hangs_shows_in_the_health_until_it_goes_on(
    worker: FakeWorkerServicer, worker_port: int
) -> None:
    async with serving(worker_port, hang_seconds=0.2) as address, open_channel(address) as channel:
        worker.may_run.clear()
        client = Client(scheduler_pb2_grpc.SchedulerServiceStub(channel))
        await client.send(add(1, PROMPT))
        await until_health(address, good=False)
        worker.may_run.set()
        await until_health(address, good=True)


async def test_an_idle_worker_does_not_hang(worker_port: int) -> None:
    async with serving(worker_port, hang_seconds=0.1) as address:
        await asyncio.sleep(0.5)
        await until_health(address, good=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", ""], "--workers: must name at least one"),
        (["--policy", "lifo"], "--policy: "),
        (["--max-plans-in-flight", "4"], "--max-plans-in-flight: "),
        (
            ["--max-num-seqs", "9", "--max-num-batched-tokens", "3"],
            "max_num_seqs: must be at most max_num_batched_tokens (3)",
        ),
    ],
)
def test_a_wrong_flag_is_explained_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
