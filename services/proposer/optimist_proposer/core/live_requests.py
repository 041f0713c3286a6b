"""Requests as the process that follows them holds them, and how many it holds."""

from array import array
from collections import OrderedDict

from optimist_aligner.algorithm import Follower
from optimist_aligner.drafting.draft import Draft
from optimist_aligner.text.sources import INT32
from optimist_common.drafts import ROOT
from optimist_proposer.core.sources import Prepared, SourceName


class SentWindow:
    """A tree of expected tokens after the first `base` of the output."""

    __slots__ = ("base", "draft", "is_alive", "node")

    def __init__(self, base: int, draft: Draft) -> None:
        """Takes the output position of the nodes without a parent, and what is expected."""
        self.base, self.draft = base, draft
        self.is_alive = True
        """Whether all of the output since `base` is a path of the tree."""
        self.node = ROOT
        """The last node that the output has come to."""

    @property
    def num_ahead(self) -> int:
        """Tokens of the longest path after the output; 0 if the output left the tree."""
        return self.draft.find_height(self.node) if self.is_alive else 0

    def walk(self, token_ids: "array[int]") -> None:
        """Follows new output tokens."""
        if not self.is_alive or not token_ids:
            return
        self.node, count = self.draft.walk(token_ids, self.node)
        self.is_alive = count == len(token_ids)


NOT_OPENED = -1
"""Logged tokens of a request whose opening the store does not know yet."""

# As measured with the default algorithm, on edits of source code: a follower with its window, what
# it keeps of each token of its sources, and of each output token.
_BASE_BYTES = 8_192
_BYTES_PER_SOURCE_TOKEN = 4
_BYTES_PER_TOKEN = 32


class LiveRequest:
    """The working copy: a pure fold over the output, and what was sent of it and where.

    Attributes:
        request_id: The request.
        generation: Names the opening that this copy is of.
        prepared: Its sources.
        output: Its output as far as it is known here [num_known].
        window: The window sent last; None before the first.
        num_logged: Tokens of the output that the store is known to have; NOT_OPENED.
        spent_seconds: CPU time spent on it.
    """

    __slots__ = (
        "_fixed_bytes",
        "_follower",
        "generation",
        "num_logged",
        "output",
        "prepared",
        "request_id",
        "spent_seconds",
        "window",
    )

    def __init__(self, request_id: str, generation: bytes, prepared: Prepared) -> None:
        self.request_id, self.generation, self.prepared = request_id, generation, prepared
        self.output = array(INT32)
        self.window: SentWindow | None = None
        self.num_logged = NOT_OPENED
        self.spent_seconds = 0.0
        self._follower: Follower = prepared.reference.follow()
        sources = _BYTES_PER_SOURCE_TOKEN * len(prepared.sources.token_ids)
        self._fixed_bytes = _BASE_BYTES + sources

    @property
    def num_known(self) -> int:
        """Output tokens that are known here."""
        return len(self.output)

    @property
    def num_alignments(self) -> int:
        """How often the position in the predictions was searched for."""
        return self._follower.num_alignments

    @property
    def num_bytes(self) -> int:
        """Memory it takes without its sources, in bytes, roughly."""
        return self._fixed_bytes + _BYTES_PER_TOKEN * len(self.output)

    def fold(self, position: int, token_ids: "array[int]") -> "array[int] | None":
        """Takes output tokens from an output position on.

        Returns:
            Those that are new, none for a stale observation; None if some before are unknown.
        """
        num_old = len(self.output) - position
        if num_old < 0:
            return None
        new = token_ids[num_old:] if num_old else token_ids
        if new:
            self._follower.observe(new)
            self.output.extend(new)
            if self.window is not None:
                self.window.walk(new)
        return new

    def next_window(self, max_tokens: int, min_value: float) -> SentWindow | None:
        """Returns the window to send now and notes it; None while the last one holds.

        A window is sent at first, when the output left the tree of the last one, and when less
        than half a window is left of that and more is expected. That nothing is expected is said
        once.

        Args:
            max_tokens: Most nodes of a window, at least 1.
            min_value: Least value of a node.
        """
        last = self.window
        if last is not None and 2 * last.num_ahead >= max_tokens:
            return None
        window = SentWindow(self.num_known, self._follower.propose(max_tokens, min_value))
        if last is not None and not _is_worth_sending(window, last):
            return None
        self.window = window
        return window


def _is_worth_sending(window: SentWindow, last: SentWindow) -> bool:
    if last.is_alive:
        return window.num_ahead > last.num_ahead
    return len(window.draft) > 0 or len(last.draft) > 0


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
        """Sets a request, or notes that one grew since `get`; returns who was forgotten for it."""
        request_id, num_bytes = request.request_id, request.num_bytes
        held, num_before = self._requests.get(request_id, (None, 0))
        if held is not request:
            self.pop(request_id)
            name, num_before = request.prepared.name, 0
            if name not in self._prepared:
                self.put_sources(request.prepared)
            self._num_users[name] = self._num_users.get(name, 0) + 1
        self._requests[request_id] = (request, num_bytes)
        self.num_bytes += num_bytes - num_before
        return self._shrink() if self._is_full else []

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

    @property
    def _is_full(self) -> bool:
        return len(self._requests) > self._max_requests or self.num_bytes > self._max_bytes

    def _shrink(self) -> list[str]:
        self._drop_unused_sources(self._max_bytes)
        forgotten: list[str] = []
        while len(self._requests) > 1 and self._is_full:
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
