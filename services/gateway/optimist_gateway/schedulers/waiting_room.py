"""Requests that have lost their scheduler and found no other yet."""

import asyncio
from collections.abc import Callable

from optimist_gateway.schedulers.tracked_request import TrackedRequest


class WaitingRoom:
    """Holds requests in the order in which they came, each for a bounded time."""

    def __init__(self, seconds: float, on_late: Callable[[TrackedRequest], None]) -> None:
        """Begins empty.

        Args:
            seconds: How long a request may wait between two of its tokens, however often.
            on_late: Takes a request that has waited for so long.
        """
        self._seconds, self._on_late = seconds, on_late
        self._timers: dict[TrackedRequest, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    @property
    def requests(self) -> list[TrackedRequest]:
        """The requests, in order."""
        return list(self._timers)

    def enter(self, request: TrackedRequest) -> None:
        """Takes a request."""
        loop = asyncio.get_running_loop()
        left = self._seconds - request.begin_wait(loop.time())
        self._timers[request] = loop.call_later(max(left, 0), self._give_up, request)

    def leave(self, request: TrackedRequest) -> bool:
        """Lets a request go; returns False if it is not here."""
        timer = self._timers.pop(request, None)
        if timer is None:
            return False
        timer.cancel()
        request.end_wait(asyncio.get_running_loop().time())
        return True

    def _give_up(self, request: TrackedRequest) -> None:
        self.leave(request)
        self._on_late(request)
