"""Items that wait for their one reader."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue without a bound of its own, for one reader.

    It does what an `asyncio.Queue` does, which asks the system for the process with every wait and
    takes several calls for what is one here.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._arrival: asyncio.Future[None] | None = None
        """Set while the reader waits."""

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Adds an item."""
        self._items.append(item)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def get(self) -> T:
        """Waits for the first item and takes it; one task at a time may wait."""
        while not self._items:
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        return self._items.popleft()
