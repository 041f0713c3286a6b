"""Requests without a slot, in the order in which they are admitted."""

from bisect import insort
from collections.abc import Sequence
from operator import attrgetter

from optimist_scheduler.core.requests.table import Request

_ORDER = attrgetter("order")


class WaitingQueue:
    """Waiting requests; the version moves with every change."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self.version = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def requests(self) -> Sequence[Request]:
        """The requests, the next one first; not a copy."""
        return self._requests

    def add(self, request: Request) -> None:
        """Adds a request at its position."""
        insort(self._requests, request, key=_ORDER)
        self.version += 1

    def remove(self, request: Request) -> None:
        """Takes a request out; raises ValueError if it does not wait."""
        self._requests.remove(request)
        self.version += 1

    def note_admission(self, request: Request) -> None:
        """Marks those who came before `request` and wait still."""
        for other in self._requests:
            if other.arrival < request.arrival:
                other.is_overtaken = True

    def promote(self, now: float, patience: float) -> int:
        """Lets requests that were overtaken and waited for too long go before all others.

        Returns how many they are.

        Args:
            now: The time, in seconds.
            patience: The longest wait, in seconds.
        """
        starved = [
            request
            for request in self._requests
            if request.is_overtaken
            and not request.is_promoted
            and now - request.arrival_time > patience
        ]
        for request in starved:
            request.is_promoted = True
        if starved:
            self.resort()
        return len(starved)

    def touch(self) -> None:
        """Notes that a request changed, though not its position."""
        self.version += 1

    def resort(self) -> None:
        """Restores the order after a change of what it depends on."""
        self._requests.sort(key=_ORDER)
        self.version += 1
