"""A service whose step does not end says so by its health, and takes it back when it does."""

import asyncio

import pytest

from optimist_common.network.health import is_serving
from optimist_common.network.server import LIVENESS, GrpcServer, watch_for_hangs


async def is_healthy(address: str, service: str) -> bool:
    return await asyncio.to_thread(is_serving, address, 5.0, service)


async def until_health(address: str, *, good: bool) -> None:
    async with asyncio.timeout(20):
        for service in ("", LIVENESS):
            while await is_healthy(address, service) is not good:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_health_follows_the_work(caplog: pytest.LogCaptureFixture) -> None:
    seconds = 0.0
    server = GrpcServer("127.0.0.1", 0)
    address = f"127.0.0.1:{await server.start()}"
    await server.set_serving(serving=True)
    watching = asyncio.create_task(watch_for_hangs(server, lambda: seconds, 0.05))
    try:
        await asyncio.sleep(0.1)
        await until_health(address, good=True)
        seconds = 7.0
        await until_health(address, good=False)
        seconds = 0.0
        await until_health(address, good=True)
        assert [record.message for record in caplog.records] == [
            "a step has not ended for 7 seconds",
            "steps end again",
        ]
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await server.stop()
