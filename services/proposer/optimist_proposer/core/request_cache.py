"""What a process holds in memory: requests and the sources that they share."""

from collections import OrderedDict

from optimist_proposer.core.live_request import LiveRequest
from optimist_proposer.core.sources import Prepared, SourceName


class RequestCache:
    """Forgets what was used least recently when it holds too much.

    Sources that no request uses go first, then requests; sources that a request uses stay with it.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self._requests: OrderedDict[str, tuple[LiveRequest, int]] = OrderedDict()
        self._prepared: OrderedDict[SourceName, Prepared] = OrderedDict()
        self._num_users: dict[SourceName, int] = {}
        self.num_bytes = 0
        """Memory of all that is held, in bytes, roughly."""

    @property
    def num_requests(self) -> int:
        """Requests held."""
        return len(self._requests)

    @property
    def num_sources(self) -> int:
        """Sources held."""
        return len(self._prepared)

    def get(self, request_id: str) -> LiveRequest | None:
        """Returns a request and counts as its use; None if it is not here."""
        entry = self._requests.get(request_id)
        if entry is None:
            return None
        self._requests.move_to_end(request_id)
        return entry[0]

    def get_sources(self, name: SourceName) -> Prepared | None:
        """Returns sources and counts as their use; None if they are not here."""
        prepared = self._prepared.get(name)
        if prepared is not None:
            self._prepared.move_to_end(name)
        return prepared

    def put_sources(self, prepared: Prepared) -> None:
        """Adds sources that are not here, after others that no request uses if room is short."""
        self._drop_unused_sources(self._max_bytes - prepared.num_bytes)
        self._prepared[prepared.name] = prepared
        self.num_bytes += prepared.num_bytes

    def put(self, request: LiveRequest) -> list[str]:
        """Sets a request, or notes that it grew; returns which others were forgotten for it."""
        self.pop(request.request_id)
        name = request.prepared.name
        if name not in self._prepared:
            self.put_sources(request.prepared)
        self._requests[request.request_id] = (request, request.num_bytes)
        self._num_users[name] = self._num_users.get(name, 0) + 1
        self.num_bytes += request.num_bytes
        return self._shrink()

    def pop(self, request_id: str) -> LiveRequest | None:
        """Forgets a request; its sources stay while there is room."""
        entry = self._requests.pop(request_id, None)
        if entry is None:
            return None
        request, num_bytes = entry
        self.num_bytes -= num_bytes
        name = request.prepared.name
        self._num_users[name] -= 1
        if not self._num_users[name]:
            del self._num_users[name]
        return request

    def _shrink(self) -> list[str]:
        self._drop_unused_sources(self._max_bytes)
        forgotten: list[str] = []
        while len(self._requests) > 1 and (
            len(self._requests) > self._max_requests or self.num_bytes > self._max_bytes
        ):
            request_id = next(iter(self._requests))
            self.pop(request_id)
            forgotten.append(request_id)
            self._drop_unused_sources(self._max_bytes)
        return forgotten

    def _drop_unused_sources(self, max_bytes: int) -> None:
        if self.num_bytes <= max_bytes:
            return
        for name in list(self._prepared):
            if self.num_bytes <= max_bytes:
                return
            if name not in self._num_users:
                self.num_bytes -= self._prepared.pop(name).num_bytes
