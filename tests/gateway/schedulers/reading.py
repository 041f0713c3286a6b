"""A reader of a request's outputs that tests take one by one."""

import asyncio
from collections import deque

from optimist_gateway.core.answer.output import Finished, StepOutput
from optimist_gateway.schedulers.requests import RequestStream


class Reading:
    """Iterates over a stream; what is not asked for yet waits there, within its bounds."""

    def __init__(self, stream: RequestStream) -> None:
        self.stream = stream
        self._items: deque[StepOutput | Exception | None] = deque()
        self._arrived = asyncio.Event()
        self._has_ended = False
        self._is_begun = False

    def __aiter__(self) -> "Reading":
        return self

    async def __anext__(self) -> StepOutput:
        """Returns the next output or raises what the stream failed with."""
        if self._has_ended:
            raise StopAsyncIteration
        self._arrived.clear()
        if self._is_begun:
            self.stream.resume()
        else:
            self._is_begun = True
            self.stream.read(self._take)
        if not self._items:
            await self._arrived.wait()
        item = self._items.popleft()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        self._has_ended = item.finished is not None
        return item

    def _take(self, item: StepOutput | Exception) -> None:
        if isinstance(item, StepOutput):
            self.stream.pause()
        self._put(item)

    def close(self) -> None:
        self.stream.close()
        self._put(None)

    def finish(self) -> "asyncio.Future[Finished | None]":
        return self.stream.finish()

    def _put(self, item: StepOutput | Exception | None) -> None:
        self._items.append(item)
        self._arrived.set()
