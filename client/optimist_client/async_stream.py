"""The steps of one request, for asyncio."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeAlias

import grpc

from optimist.v1 import inference_pb2
from optimist_client.answer import Result, Step
from optimist_client.errors import (
    OptimistError,
    cancelled,
    error_of,
    incomplete,
    is_being_cancelled,
)
from optimist_client.response import request_id_of, result_of, step_of
from optimist_client.retry import Deadline, RetryPolicy

ResponseCall: TypeAlias = (
    "grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]"
)


class AsyncStream(AsyncIterator[Step]):
    """The steps of one request, as they come; also a context manager that ends the request.

    Iterating raises OptimistError if the call fails. A call that the server did not begin to
    answer is made again if that may help.
    """

    def __init__(
        self,
        start: Callable[[float | None], ResponseCall],
        deadline: Deadline,
        retries: RetryPolicy,
    ) -> None:
        """Makes the call.

        Args:
            start: Makes the call with this many seconds until its deadline.
            deadline: Until when all tries together may last.
            retries: When it is made again.
        """
        self._start = start
        self._deadline = deadline
        self._retries = retries
        self._num_retries = 0
        self._cancelled = asyncio.Event()
        self._steps: list[Step] = []
        self._summary: inference_pb2.Summary | None = None
        self._call = start(deadline.remaining())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    async def __anext__(self) -> Step:
        """Returns the next step.

        Raises:
            OptimistError: The call failed or was cancelled.
        """
        if self._summary is not None:
            raise StopAsyncIteration
        response = await self._next_response()
        if response.WhichOneof("event") == "summary":
            self._summary = response.summary
            # So that leaving the block does not cancel a call that ends just now.
            with suppress(grpc.RpcError, OptimistError):
                await self._read()
            raise StopAsyncIteration
        step = step_of(response.step)
        self._steps.append(step)
        return step

    async def request_id(self) -> str:
        """Returns the server's name of the request, once it begins to answer; empty if it fails."""
        try:
            return request_id_of(await self._call.initial_metadata())
        except grpc.RpcError:
            return ""

    async def result(self) -> Result:
        """Reads to the end and returns the whole answers; raises OptimistError as iterating does.

        Steps that were read before are part of them.
        """
        async for _ in self:
            pass
        if self._summary is None:
            raise incomplete()
        return result_of(self._summary, self._steps)

    def cancel(self) -> None:
        """Ends the request at the server, if it still runs."""
        self._cancelled.set()
        self._call.cancel()

    async def _next_response(self) -> inference_pb2.GenerateResponse:
        while True:
            try:
                response = await self._read()
            except grpc.RpcError as error:
                await self._retry_or_raise(error_of(error))
                continue
            if not isinstance(response, inference_pb2.GenerateResponse):
                raise incomplete()
            return response

    async def _read(self) -> object:
        """Reads as gRPC does; raises OptimistError if not the task but the call is cancelled."""
        try:
            return await self._call.read()
        except asyncio.CancelledError:
            # gRPC leaves a call running whose reader still waits for the request to be sent.
            self._call.cancel()
            if is_being_cancelled():
                raise
            raise cancelled() from None

    async def _retry_or_raise(self, failure: OptimistError) -> None:
        wait = None
        if not self._steps:
            remaining = self._deadline.remaining()
            wait = self._retries.wait_seconds(failure, self._num_retries, remaining)
        if wait is None or await self._is_cancelled_within(wait):
            raise failure
        self._num_retries += 1
        self._call = self._start(self._deadline.remaining())

    async def _is_cancelled_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._cancelled.wait()
        except TimeoutError:
            # It may have been cancelled in the same turn of the event loop.
            return self._cancelled.is_set()
