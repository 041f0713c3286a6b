"""The gRPC face of the scheduler: moves messages, and decides nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.columns import to_bytes
from optimist_scheduler.commands import Commands
from optimist_scheduler.engine import Engine
from optimist_scheduler.gateway_stream import GatewayStream, SlowReaderError

_Context = grpc.aio.ServicerContext[Any, Any]


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Serves Describe and Connect."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def Describe(  # noqa: N802
        self, request: scheduler_pb2.DescribeRequest, context: _Context
    ) -> scheduler_pb2.DescribeResponse:
        """Describes the model and the load."""
        description = self._engine.description
        if description is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker has not been reached yet")
        return scheduler_pb2.DescribeResponse(
            model=description.model,
            vocab_size=description.config.vocab_size,
            max_model_len=description.config.max_model_len,
            kv_capacity_tokens=description.config.kv_capacity_tokens,
            eos_token_ids=to_bytes(description.eos_token_ids),
            num_running=self._engine.scheduler.num_running,
            num_waiting=self._engine.scheduler.num_waiting,
            is_synthetic=description.is_synthetic,
        )

    async def Connect(  # noqa: N802
        self,
        request_iterator: AsyncIterator[scheduler_pb2.ConnectRequest],
        context: _Context,
    ) -> AsyncIterator[scheduler_pb2.ConnectResponse]:
        """Carries commands and outputs; its requests are aborted when the stream ends."""
        if self._engine.description is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker has not been reached yet")
        commands, stream = self._engine.commands, self._engine.delivery.open()
        reader = asyncio.create_task(_read(request_iterator, commands, stream))
        try:
            async for response in stream.responses():
                yield response
            await reader
        except SlowReaderError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            commands.close(stream)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


async def _read(
    requests: AsyncIterator[scheduler_pb2.ConnectRequest],
    commands: Commands,
    stream: GatewayStream,
) -> None:
    """Carries out the commands of a stream."""
    try:
        async for command in requests:
            commands.carry_out(stream, command)
            await stream.until_read()
            if stream.overflown:
                return
    finally:
        stream.take_no_more()
