"""The outputs of one request, as they arrive."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

from optimist_gateway.core.output import Finished, StepOutput

logger = logging.getLogger(__name__)

# Outputs of one request that may wait for a slow reader.
MAX_WAITING_OUTPUTS = 256
# How long an answer that is complete may wait for its account.
ACCOUNT_SECONDS = 1.0


class SchedulerUnavailableError(Exception):
    """The scheduler is not reached, or went away with the answer."""


class SlowReaderError(Exception):
    """The client reads its answer more slowly than it is written."""


class Abort(Protocol):
    """Ends a request at the scheduler, if it still runs."""

    def __call__(self, *, wants_finished: bool = False) -> None:
        """With `wants_finished` the request's reader still gets its end."""
        ...


class RequestStream:
    """The outputs of one request; iterate, then `close`."""

    def __init__(self, abort: Abort) -> None:
        """Begins without outputs.

        Args:
            abort: Ends the request at the scheduler.
        """
        self._abort = abort
        # An asyncio.Queue asks the system for the process, again and again, with each wait.
        self._waiting: deque[StepOutput | Exception | None] = deque()
        self._arrival: asyncio.Future[None] | None = None
        """Set while the reader waits for the next output."""
        self._loop = asyncio.get_running_loop()
        self._ended = False

    def __aiter__(self) -> AsyncIterator[StepOutput]:
        return self

    async def __anext__(self) -> StepOutput:
        """Returns the next output; ends behind the one with `finished`, or after `close`.

        Raises:
            SchedulerUnavailableError: The stream to the scheduler broke.
            SlowReaderError: Too many outputs waited.
        """
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._arrival = self._loop.create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        output = self._waiting.popleft()
        if output is None:
            raise StopAsyncIteration
        if isinstance(output, Exception):
            raise output
        return output

    def close(self) -> None:
        """Ends the request at the scheduler if it still runs; a waiting reader is woken."""
        if not self._ended:
            self._ended = True
            self._abort()
            self._put(None)

    async def finish(self) -> Finished | None:
        """Ends the request and returns its account; None if the scheduler does not tell it."""
        if not self._ended:
            self._abort(wants_finished=True)
        try:
            async with asyncio.timeout(ACCOUNT_SECONDS):
                async for output in self:
                    if output.finished is not None:
                        return output.finished
        except (TimeoutError, SchedulerUnavailableError, SlowReaderError) as error:
            logger.warning("an answer goes out without its account: %r", error)
        return None

    def deliver(self, output: StepOutput) -> None:
        """Adds an output for the reader."""
        if output.finished is not None:
            self._ended = True
        elif len(self._waiting) >= MAX_WAITING_OUTPUTS:
            self._abort()
            self.fail(SlowReaderError("the answer was read too slowly"))
            return
        self._put(output)

    def fail(self, error: Exception) -> None:
        """Ends the request with an error."""
        if not self._ended:
            self._ended = True
            self._put(error)

    def _put(self, item: StepOutput | Exception | None) -> None:
        self._waiting.append(item)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
