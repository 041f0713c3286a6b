"""What the client for asyncio does beyond the plain one."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import grpc
import pytest

from optimist_client import AsyncClient, OptimistError, RetryPolicy, async_client
from optimist_client.async_stream import AsyncStream, ResponseCall
from optimist_client.connection import OPTIONS
from optimist_client.retry import Deadline
from tests.chaos.faults.proxy import BLACK_HOLE, FaultProxy
from tests.client.scripted_server import ScriptedServer, failing, hanging


@pytest.fixture
async def client(server: ScriptedServer, quick: RetryPolicy) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.address, api_key="k", timeout=20, retries=quick) as connected:
        yield connected


async def ended(server: ScriptedServer) -> bool:
    return await asyncio.to_thread(server.ended.wait, 10)


async def test_cancelling_the_call_is_no_cancelling_of_the_task(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.behaviours = [hanging]
    stream = client.generate("x")
    await anext(stream)
    asyncio.get_running_loop().call_later(0.05, stream.cancel)
    with pytest.raises(OptimistError) as caught:
        await anext(stream)
    assert caught.value.status == "CANCELLED"


async def test_a_step_that_was_not_waited_for_to_its_end_ends_the_call(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.behaviours = [hanging]
    stream = client.generate("x")
    await anext(stream)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.01)
    with pytest.raises(OptimistError, match="CANCELLED"):
        await anext(stream)


async def test_closing_the_client_ends_its_calls_and_cancels_no_task(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.behaviours = [hanging]
    stream = client.generate("x")
    await anext(stream)
    tasks = [asyncio.create_task(stream.result()), asyncio.create_task(client.models())]
    await asyncio.sleep(0)
    await client.close()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, OptimistError)
        assert result.status == "CANCELLED"


async def test_cancelling_the_task_ends_the_request(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.behaviours = [hanging]
    task = asyncio.create_task(client.generate("x").result())
    while not server.requests:  # noqa: ASYNC110 (what is waited for has no event)
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ended(server)


async def test_cancelling_the_task_ends_a_request_that_is_not_sent_yet() -> None:
    class Unsent:
        is_cancelled = False

        async def read(self) -> None:
            await asyncio.Event().wait()

        def cancel(self) -> None:
            self.is_cancelled = True

    call = Unsent()
    stream = AsyncStream(lambda _: cast(ResponseCall, call), Deadline.after(None), RetryPolicy())
    task = asyncio.create_task(stream.result())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.is_cancelled


async def test_a_wait_for_a_retry_can_be_cancelled(server: ScriptedServer) -> None:
    server.behaviours = [failing(grpc.StatusCode.UNAVAILABLE, retry_after="1000")]
    async with AsyncClient(server.address, timeout=None) as client:
        stream = client.generate("x")
        # The refusal has come by then.
        asyncio.get_running_loop().call_later(1.0, stream.cancel)
        with pytest.raises(OptimistError, match="as the test wants"):
            await anext(stream)
    assert len(server.requests) == 1


async def test_no_call_is_made_after_a_wait_that_ends_as_it_is_cancelled() -> None:
    class Refused:
        async def read(self) -> None:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing)

        def cancel(self) -> None:
            pass

    calls: list[ResponseCall] = []

    def start(_timeout: float | None) -> ResponseCall:
        calls.append(cast(ResponseCall, Refused()))
        return calls[-1]

    # The wait is over with the next turn of the event loop, in which its end is heard of too.
    stream = AsyncStream(start, Deadline.after(None), RetryPolicy(first_wait_seconds=0.0))
    task = asyncio.create_task(stream.result())
    await asyncio.sleep(0)
    stream.cancel()
    with pytest.raises(OptimistError, match="UNAVAILABLE"):
        await task
    assert len(calls) == 1


async def test_a_server_that_vanished_is_noticed(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Waits are as much shorter here.
    monkeypatch.setattr(
        async_client,
        "OPTIONS",
        [(name, value // 100 if name.endswith("_ms") else value) for name, value in OPTIONS],
    )
    server.behaviours = [hanging]
    host, port = server.address.split(":")
    proxy = FaultProxy((host, int(port)))
    await proxy.start()
    try:
        async with AsyncClient(f"127.0.0.1:{proxy.port}", timeout=None) as client:
            stream = client.generate("x")
            await anext(stream)
            await proxy.disturb(BLACK_HOLE)
            # Without pings, or without a limit for their answers, it would wait for a minute.
            async with asyncio.timeout(20):
                with pytest.raises(OptimistError, match="UNAVAILABLE"):
                    await anext(stream)
    finally:
        await proxy.stop()
