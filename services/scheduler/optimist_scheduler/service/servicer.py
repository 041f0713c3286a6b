"""The gRPC face of the scheduler: moves messages, and decides nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.columns import to_bytes
from optimist_scheduler.engine.fleet import Fleet
from optimist_scheduler.gateways.commands import Commands
from optimist_scheduler.gateways.delivery import GatewayStream, ModelChangedError, SlowReaderError
from optimist_scheduler.workers.dispatcher import UNREACHED

_Context = grpc.aio.ServicerContext[Any, Any]


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Serves Describe and Connect."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def Describe(  # noqa: N802
        self, request: scheduler_pb2.DescribeRequest, context: _Context
    ) -> scheduler_pb2.DescribeResponse:
        """Describes the model, what fits every worker, and the load."""
        descriptions = self._fleet.descriptions
        if not descriptions:
            await context.abort(grpc.StatusCode.UNAVAILABLE, UNREACHED)
        first, dispatcher = descriptions[0], self._fleet.dispatcher
        configs = [each.config for each in descriptions]
        return scheduler_pb2.DescribeResponse(
            model=first.model,
            vocab_size=first.config.vocab_size,
            max_model_len=min(config.max_model_len for config in configs),
            kv_capacity_tokens=min(config.kv_capacity_tokens for config in configs),
            eos_token_ids=to_bytes(first.eos_token_ids),
            num_running=dispatcher.num_running,
            num_waiting=dispatcher.num_waiting,
            is_synthetic=first.is_synthetic,
            num_workers=dispatcher.num_workers,
            policy=scheduler_pb2.SchedulingPolicy.Value(
                f"SCHEDULING_POLICY_{first.config.policy.upper()}"
            ),
            max_draft_tokens=min(config.max_draft_tokens for config in configs),
        )

    async def Connect(  # noqa: N802
        self,
        request_iterator: AsyncIterator[scheduler_pb2.ConnectRequest],
        context: _Context,
    ) -> AsyncIterator[scheduler_pb2.ConnectResponse]:
        """Carries commands and outputs; its requests are aborted when the stream ends."""
        if not self._fleet.descriptions:
            await context.abort(grpc.StatusCode.UNAVAILABLE, UNREACHED)
        commands, stream = self._fleet.commands, self._fleet.delivery.open()
        reader = asyncio.create_task(_read(request_iterator, commands, stream))
        try:
            async for response in stream.responses():
                yield response
            await reader
        except SlowReaderError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except ModelChangedError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
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
            if stream.fault:
                return
            commands.carry_out(stream, command)
            await stream.until_read()
            if stream.overflown:
                return
    finally:
        stream.take_no_more()
