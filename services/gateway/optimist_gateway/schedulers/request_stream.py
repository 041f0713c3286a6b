"""The outputs of one request, as they arrive."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import copy_context

from optimist_gateway.core.answer.output import Finished, StepOutput

logger = logging.getLogger(__name__)

# Outputs of one request that may wait for a slow reader.
MAX_WAITING_OUTPUTS = 256
# How long an answer that is complete may wait for its account.
ACCOUNT_SECONDS = 1.0


class SchedulerUnavailableError(Exception):
    """The scheduler is not reached, or went away with the answer."""


class SlowReaderError(Exception):
    """The client reads its answer more slowly than it is written."""


Take = Callable[[StepOutput | Exception], None]
"""Takes an output in the moment in which it arrives, or why no more come; raises nothing.

No output follows the one with `finished`. The error is a SchedulerUnavailableError if the stream to
the scheduler broke, a SlowReaderError if too many outputs waited.
"""


class RequestStream:
    """The outputs of one request; let somebody `read` them, then `close`.

    A reader is called and not woken: a task that wakes up for each request and step would take
    longer than all that is done there.
    """

    __slots__ = (
        "_abort",
        "_account",
        "_context",
        "_ended",
        "_is_flowing",
        "_loop",
        "_reader",
        "_waiting",
    )

    def __init__(self, abort: Callable[..., None]) -> None:
        """Begins without outputs.

        Args:
            abort: Ends the request at the scheduler, if it still runs; with `wants_finished` the
                reader still gets its end.
        """
        self._abort = abort
        self._waiting: deque[StepOutput | Exception] = deque()
        self._reader: Take | None = None
        self._is_flowing = False
        """Whether what arrives goes to the reader at once."""
        self._account: asyncio.Future[Finished | None] | None = None
        """Set once nothing but the account is wanted."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._ended = False

    def read(self, reader: Take) -> None:
        """Calls a reader with outputs from now on, with those first that wait."""
        self._reader = reader
        self.resume()

    def pause(self) -> None:
        """Lets outputs wait."""
        self._is_flowing = False

    def resume(self) -> None:
        """Hands over what waits, and then what arrives."""
        reader = self._reader
        if reader is None or self._account is not None:
            return
        self._is_flowing = True
        while self._waiting and self._is_flowing:
            reader(self._waiting.popleft())

    def close(self) -> None:
        """Ends the request at the scheduler if it still runs; the reader gets nothing more."""
        self._reader = None
        self._is_flowing = False
        self._waiting.clear()
        if not self._ended:
            self._abort()
            self._end()
            if self._account is not None and not self._account.done():
                self._account.set_result(None)

    def finish(self) -> asyncio.Future[Finished | None]:
        """Ends the request; only its account is read from now on.

        Returns:
            The account; None if it does not come within a second.
        """
        account = self._account = self._loop.create_future()
        self._is_flowing = False
        waiting, self._waiting = self._waiting, deque()
        if not self._ended:
            self._abort(wants_finished=True)
            timer = self._loop.call_later(ACCOUNT_SECONDS, self._settle, TimeoutError())
            account.add_done_callback(lambda _: timer.cancel())
        for item in waiting:
            self._settle(item)
        if self._ended and not account.done():
            account.set_result(None)
        return account

    def deliver(self, output: StepOutput) -> None:
        """Adds an output for the reader."""
        if self._is_flowing and output.finished is None and self._reader is not None:
            self._reader(output)
            return
        if output.finished is not None:
            self._end()
        elif len(self._waiting) >= MAX_WAITING_OUTPUTS:
            self._abort()
            self.fail(SlowReaderError("the answer was read too slowly"))
            return
        self._put(output)

    def fail(self, error: Exception) -> None:
        """Ends the request with an error."""
        if not self._ended:
            self._end()
            self._put(error)

    def _end(self) -> None:
        self._ended = True
        # It leads back here: without it the request goes when it is over, not with a collection.
        self._abort = _end_nothing

    def _put(self, item: StepOutput | Exception) -> None:
        if self._is_flowing and self._reader is not None:
            self._reader(item)
        elif self._account is not None:
            self._settle(item)
        else:
            self._waiting.append(item)

    def _settle(self, item: StepOutput | Exception) -> None:
        """Looks for the account in what arrives."""
        if self._account is None or self._account.done():
            return
        if isinstance(item, StepOutput):
            if item.finished is not None:
                self._account.set_result(item.finished)
            return
        self._context.run(logger.warning, "an answer goes out without its account: %r", item)
        self._account.set_result(None)


def _end_nothing(*, wants_finished: bool = False) -> None:
    """Ends a request that has ended."""
