"""A connection to a peer that hangs, or that the network lost, is noticed by both sides."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.network import channel, server
from optimist_common.network.health import is_serving
from optimist_common.network.server import GrpcServer, bind
from tests.chaos.faults.proxy import BLACK_HOLE, FaultProxy

# Waits are as much shorter here.
SCALE = 20


def scaled(options: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return [
        (name, value // SCALE if name.endswith("_ms") and "backoff" not in name else value)
        for name, value in options
    ]


class Servicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Says one thing, and then nothing until it is cancelled."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def Describe(self, request: Any, context: Any) -> scheduler_pb2.DescribeResponse:  # noqa: N802
        return scheduler_pb2.DescribeResponse()

    async def Connect(  # noqa: N802
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[scheduler_pb2.ConnectResponse]:
        try:
            yield scheduler_pb2.ConnectResponse()
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def test_services_are_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    servicer, grpc_server = Servicer(), GrpcServer("127.0.0.1", 0)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, grpc_server.server)
    address = f"127.0.0.1:{await grpc_server.start()}"
    await grpc_server.set_serving(serving=True)
    # Nobody listens there.
    with bind("127.0.0.1", 0) as unused:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{unused.getsockname()[1]}")
        for name in ("no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        try:
            assert await asyncio.to_thread(is_serving, address, 5.0)
            async with channel.open_channel(address) as opened:
                stub = scheduler_pb2_grpc.SchedulerServiceStub(opened)
                assert await stub.Describe(scheduler_pb2.DescribeRequest())
        finally:
            await grpc_server.server.stop(None)


async def test_both_sides_of_a_silent_connection_give_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "OPTIONS", scaled(channel.OPTIONS))
    monkeypatch.setattr(server, "SERVER_OPTIONS", scaled(server.SERVER_OPTIONS))
    servicer, grpc_server = Servicer(), GrpcServer("127.0.0.1", 0)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, grpc_server.server)
    proxy = FaultProxy(("127.0.0.1", await grpc_server.start()))
    await proxy.start()
    try:
        async with channel.open_channel(f"127.0.0.1:{proxy.port}") as opened:
            call = scheduler_pb2_grpc.SchedulerServiceStub(opened).Connect()
            await call.write(scheduler_pb2.ConnectRequest())
            await call.read()
            await proxy.disturb(BLACK_HOLE)
            # Without pings, or without a limit for their answers, either would wait for a minute.
            async with asyncio.timeout(20):
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await call.read()
                await servicer.ended.wait()
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        await proxy.stop()
        await grpc_server.server.stop(None)
