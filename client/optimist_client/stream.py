"""The steps of one request, for plain Python."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

import grpc

from optimist.v1 import inference_pb2
from optimist_client.answer import Result, Step
from optimist_client.errors import OptimistError, error_of, incomplete
from optimist_client.response import request_id_of, result_of, step_of
from optimist_client.retry import Deadline, RetryPolicy


class ResponseCall(Protocol):
    """A call of gRPC whose responses are read one by one."""

    def __next__(self) -> inference_pb2.GenerateResponse: ...

    def initial_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Waits for the beginning of the answer and returns its metadata."""
        ...

    def cancel(self) -> bool:
        """Ends the call, if it has not ended."""
        ...


class Stream(Iterator[Step]):
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
        self._cancelled = threading.Event()
        self._steps: list[Step] = []
        self._summary: inference_pb2.Summary | None = None
        self._call = start(deadline.remaining())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def __next__(self) -> Step:
        """Returns the next step.

        Raises:
            OptimistError: The call failed or was cancelled.
        """
        if self._summary is not None:
            raise StopIteration
        response = self._next_response()
        if response.WhichOneof("event") == "summary":
            self._summary = response.summary
            # So that leaving the block does not cancel a call that ends just now.
            with suppress(StopIteration, grpc.RpcError):
                next(self._call)
            raise StopIteration
        step = step_of(response.step)
        self._steps.append(step)
        return step

    @property
    def request_id(self) -> str:
        """The server's name of the request, once it begins to answer; empty if it failed to."""
        return request_id_of(self._call.initial_metadata())

    def result(self) -> Result:
        """Reads to the end and returns the whole answers; raises OptimistError as iterating does.

        Steps that were read before are part of them.
        """
        for _ in self:
            pass
        if self._summary is None:
            raise incomplete()
        return result_of(self._summary, self._steps)

    def cancel(self) -> None:
        """Ends the request at the server, if it still runs; may be called from any thread."""
        self._cancelled.set()
        self._call.cancel()

    def _next_response(self) -> inference_pb2.GenerateResponse:
        while True:
            try:
                return next(self._call)
            except StopIteration:
                raise incomplete() from None
            except grpc.RpcError as error:
                self._retry_or_raise(error_of(error))

    def _retry_or_raise(self, failure: OptimistError) -> None:
        wait = None
        if not self._steps:
            remaining = self._deadline.remaining()
            wait = self._retries.wait_seconds(failure, self._num_retries, remaining)
        if wait is None or self._cancelled.wait(wait):
            raise failure
        self._num_retries += 1
        self._call = self._start(self._deadline.remaining())
        if self._cancelled.is_set():
            self._call.cancel()
