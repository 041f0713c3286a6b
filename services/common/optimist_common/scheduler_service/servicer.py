"""The gRPC face of a scheduler: moves messages, and decides nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.scheduler_service.stream import (
    BrokenOffError,
    GatewayStream,
    SlowReaderError,
)

_Context = grpc.aio.ServicerContext[Any, Any]


class UnreachedError(Exception):
    """There is no model to describe yet; the text is why."""


class Backend(Protocol):
    """What carries out the commands of gateways."""

    def describe(self) -> scheduler_pb2.DescribeResponse:
        """Describes the model, what it takes, and the load; raises UnreachedError without one."""
        ...

    def open(self) -> GatewayStream:
        """Returns a stream with a number of its own; raises UnreachedError without a model."""
        ...

    def carry_out(self, stream: GatewayStream, command: scheduler_pb2.ConnectRequest) -> None:
        """Carries out one command of a stream and answers it, now or later."""
        ...

    def close(self, stream: GatewayStream) -> None:
        """Aborts all requests of a stream, which is sent nothing more."""
        ...


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Serves Describe and Connect."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def Describe(  # noqa: N802
        self, request: scheduler_pb2.DescribeRequest, context: _Context
    ) -> scheduler_pb2.DescribeResponse:
        """Describes the model, what it takes, and the load."""
        try:
            return self._backend.describe()
        except UnreachedError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def Connect(  # noqa: N802
        self,
        request_iterator: AsyncIterator[scheduler_pb2.ConnectRequest],
        context: _Context,
    ) -> AsyncIterator[scheduler_pb2.ConnectResponse]:
        """Carries commands and outputs; its requests are aborted when the stream ends."""
        try:
            stream = self._backend.open()
        except UnreachedError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        reader = asyncio.create_task(_read(request_iterator, self._backend, stream))
        try:
            async for response in stream.responses():
                yield response
            await reader
        except SlowReaderError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except BrokenOffError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        finally:
            self._backend.close(stream)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


async def _read(
    requests: AsyncIterator[scheduler_pb2.ConnectRequest],
    backend: Backend,
    stream: GatewayStream,
) -> None:
    """Carries out the commands of a stream."""
    try:
        async for command in requests:
            if stream.fault:
                return
            backend.carry_out(stream, command)
            await stream.until_read()
            if stream.overflown:
                return
    finally:
        stream.take_no_more()
