"""The gRPC face of the scheduler: translates messages, and decides nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.columns import to_bytes
from optimist_scheduler.core.output import Finished, FinishReason
from optimist_scheduler.engine import Engine
from optimist_scheduler.gateway_stream import GatewayStream, SlowReaderError
from optimist_scheduler.translate import MalformedError, new_request

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
            vocab_size=description.limits.vocab_size,
            max_model_len=description.limits.max_model_len,
            kv_capacity_tokens=description.limits.kv_capacity_tokens,
            eos_token_ids=to_bytes(description.eos_token_ids),
            num_running=self._engine.num_running,
            num_waiting=self._engine.num_waiting,
        )

    async def Connect(  # noqa: N802
        self,
        request_iterator: AsyncIterator[scheduler_pb2.ConnectRequest],
        context: _Context,
    ) -> AsyncIterator[scheduler_pb2.ConnectResponse]:
        """Carries commands and outputs; its requests are aborted when the stream ends."""
        if self._engine.description is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker has not been reached yet")
        stream = GatewayStream()
        reader = asyncio.create_task(self._read(request_iterator, stream))
        try:
            async for response in stream.responses():
                yield response
            await reader
        except SlowReaderError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except MalformedError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._engine.close(stream)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(
        self,
        request_iterator: AsyncIterator[scheduler_pb2.ConnectRequest],
        stream: GatewayStream,
    ) -> None:
        """Carries out the commands of a stream; raises MalformedError."""
        try:
            async for command in request_iterator:
                self._carry_out(command, stream)
                if stream.overflown:
                    return
        except MalformedError:
            self._engine.close(stream)
            raise
        finally:
            stream.take_no_more()

    def _carry_out(self, command: scheduler_pb2.ConnectRequest, stream: GatewayStream) -> None:
        kind = command.WhichOneof("command")
        if kind == "abort":
            abort = command.abort
            self._engine.abort(stream, abort.handle, wants_finished=abort.wants_finished)
        elif kind != "add":
            raise MalformedError("command: is not set")
        elif command.add.handle in stream.request_ids:
            raise MalformedError(f"add.handle: {command.add.handle} is in use")
        else:
            self._add(command.add, stream)

    def _add(self, add: scheduler_pb2.Add, stream: GatewayStream) -> None:
        try:
            new = new_request(add)
        except MalformedError as error:
            self._engine.reject(stream, add.handle, Finished(FinishReason.REFUSED, str(error)))
        else:
            self._engine.add(stream, add.handle, new)
