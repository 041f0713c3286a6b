"""The plans of one Execute call on their way to the model's thread, and the answers back."""

import asyncio
import time
from collections.abc import AsyncIterator
from enum import Enum
from queue import SimpleQueue

from optimist.worker.v1 import worker_pb2

MOST_PLANS = 4
"""Plans held that have no answer yet; all further ones wait in gRPC's flow control."""


class Wake(Enum):
    """Stands where a plan would."""

    WAKE = 0


class PlanStream:
    """Reads plans ahead of the running one.

    A plan makes room for another when its first answer has gone out. So neither a sender that is
    too fast nor one that reads no answers makes anything here grow without bound.

    `take`, `answer` and `finish` are the model thread's, `wake` is any thread's;
    all else belongs to the event loop.
    """

    def __init__(
        self, requests: AsyncIterator[worker_pb2.ExecuteRequest], most_plans: int = MOST_PLANS
    ) -> None:
        """Begins to read; holds at most so many plans that have no answer yet."""
        self.replaced = False
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(most_plans)
        self._plans: SimpleQueue[worker_pb2.ExecuteRequest | Wake | None] = SimpleQueue()
        self._answers: asyncio.Queue[worker_pb2.ExecuteResponse | None] = asyncio.Queue()
        # Each number is written by one thread only.
        self._num_read = self._num_taken = 0
        self._at_work_since: float | None = None
        self._reader = asyncio.ensure_future(self._read(requests))

    def take(self, *, is_at_work: bool = False) -> worker_pb2.ExecuteRequest | Wake | None:
        """Waits for the next plan, or for `wake`.

        Args:
            is_at_work: Whether plans are still at work meanwhile.

        Returns:
            None when there is no further plan or the stream was closed.
        """
        # Where a plan is at hand nothing is waited for, and a device may be at one before it.
        if not is_at_work and self.is_idle:
            self._at_work_since = None
        request = self._plans.get()
        if self._closed or request is None:
            return None
        if not isinstance(request, Wake):
            self._num_taken += 1
            if not is_at_work:
                self._at_work_since = time.monotonic()
        return request

    def wake(self) -> None:
        """Ends a wait for the next plan; called by any thread."""
        self._plans.put(Wake.WAKE)

    def seconds_at_work(self) -> float:
        """Returns how long the model's thread has neither answered nor waited for a plan."""
        since = self._at_work_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def is_idle(self) -> bool:
        """Whether no plan is waiting; never blocks."""
        return self._num_read == self._num_taken

    @property
    def may_repeat(self) -> bool:
        """Whether the last plan may be run again: nothing newer has arrived."""
        return self.is_idle and not self._closed

    def answer(self, response: worker_pb2.ExecuteResponse) -> None:
        """Hands an answer to the event loop."""
        self._at_work_since = time.monotonic()
        self._loop.call_soon_threadsafe(self._answers.put_nowait, response)

    def finish(self) -> None:
        """Says that no answer will follow."""
        self._at_work_since = None
        self._loop.call_soon_threadsafe(self._answers.put_nowait, None)

    async def next_answer(self) -> worker_pb2.ExecuteResponse | None:
        """Returns the next answer, or None when there will be none."""
        return await self._answers.get()

    def sent(self, response: worker_pb2.ExecuteResponse) -> None:
        """Makes room for a plan once the first answer to another has gone out."""
        if response.repeat == 0:
            self._room.release()

    def replace(self) -> None:
        """Ends the stream before its next plan, in favour of another stream."""
        self.replaced = True
        self.close()

    def close(self) -> None:
        """Ends the stream before its next plan."""
        self._closed = True
        self._reader.cancel()
        self._plans.put(None)

    def raise_read_error(self) -> None:
        """Raises what reading the call has failed with, if it has."""
        if self._reader.done() and not self._reader.cancelled():
            self._reader.result()

    async def _read(self, requests: AsyncIterator[worker_pb2.ExecuteRequest]) -> None:
        try:
            await self._room.acquire()
            async for request in requests:
                self._num_read += 1
                self._plans.put(request)
                await self._room.acquire()
        finally:
            self._plans.put(None)
