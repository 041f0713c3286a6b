"""Items that wait for their one reader."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue without a bound of its own, for one reader, which iterates over `items`.

    An `asyncio.Queue` asks the system for the process with every wait and takes several calls for
    what is one here; and it has no end. A call of grpc.aio that is over does not end what it reads
    its requests from: whoever made the call closes its mailbox, or the reader waits for ever.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._arrival: asyncio.Future[None] | None = None
        """Set while the reader waits."""
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Adds an item; after `close` it reaches nobody."""
        self._items.append(item)
        self._wake()

    def close(self) -> None:
        """Lets the iteration end after what waits."""
        self._is_closed = True
        self._wake()

    async def items(self) -> AsyncIterator[T]:
        """Iterates over the items as they come, until `close`."""
        while True:
            while self._items:
                yield self._items.popleft()
            if self._is_closed:
                return
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
