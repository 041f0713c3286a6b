"""What the proposers know of the requests, and what they say about them."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from optimist.proposer.v1 import proposer_pb2
from optimist_common.columns import from_bytes, to_bytes
from optimist_scheduler import metrics
from optimist_scheduler.core.window import MAX_ALTERNATIVES, Alternative, Window
from optimist_scheduler.proposer_link import ProposerLink

MAX_BATCH_REQUESTS = 1024
MAX_BATCH_BYTES = 16 * 1024 * 1024
MAX_WAITING_CLOSES = 4096
LONGEST_BACKOFF_STEPS = 64

OnWindow = Callable[[str, Window], None]


@dataclass(slots=True)
class Followed:
    """A request that has a prediction, and what of it was sent."""

    predicted_token_ids: bytes
    token_ids: list[int] = field(default_factory=list)
    """Output so far."""
    num_sent_tokens: int = 0
    must_open: bool = True
    batch: int = -1
    """The last batch that names the request."""
    link: ProposerLink | None = None
    """Where that batch went."""
    repaired_before: int = -1
    """Gaps of batches below this one were mended since."""
    num_gaps: int = 0
    """Gaps without an answer that had none between."""
    num_skipped_steps: int = 0
    """Steps that are still not observed, because of gaps."""


class Proposers:
    """Opens, observes and closes requests at any number of proposers, round robin.

    Nothing here is needed for a request to go on: what cannot be sent is sent later or not at all,
    and a proposer that lost track of a request is told its output again.
    """

    def __init__(self, addresses: Sequence[str], wait_ms: float, on_window: OnWindow) -> None:
        """Sets up links that are not connected until `run` is.

        Args:
            addresses: host:port of each proposer; without any, requests are not followed.
            wait_ms: Longest wait for answers after a step, in milliseconds.
            on_window: Takes each new window.
        """
        self._links = [
            ProposerLink(address, self._take_response, self._note_change) for address in addresses
        ]
        self._wait_seconds = wait_ms / 1000
        self._on_window = on_window
        self._followed: dict[str, Followed] = {}
        self._unsent: dict[str, None] = {}
        self._closed: deque[str] = deque(maxlen=MAX_WAITING_CLOSES)
        self._batches = itertools.count(1)
        self._next_link = 0
        self._answered = asyncio.Event()
        self._flush_handle: asyncio.Handle | None = None

    async def run(self) -> None:
        """Keeps all links connected for ever."""
        async with asyncio.TaskGroup() as tasks:
            for link in self._links:
                tasks.create_task(link.run())

    def open(self, request_id: str, predicted_token_ids: Sequence[int]) -> None:
        """Begins to follow a request if it has a prediction."""
        if not self._links or not predicted_token_ids:
            return
        self._followed[request_id] = Followed(to_bytes(predicted_token_ids))
        self._unsent[request_id] = None
        self._flush_soon()

    def close(self, request_id: str) -> None:
        """Follows a request no longer."""
        if self._followed.pop(request_id, None) is None:
            return
        self._unsent.pop(request_id, None)
        self._closed.append(request_id)
        self._flush_soon()

    def observe(self, observed: Sequence[tuple[str, list[int]]]) -> None:
        """Sends new tokens, by request id, of the requests that are followed."""
        for request_id, token_ids in observed:
            followed = self._followed.get(request_id)
            if followed is None:
                continue
            followed.token_ids += token_ids
            if followed.num_skipped_steps:
                followed.num_skipped_steps -= 1
            else:
                self._unsent[request_id] = None
        self._flush()

    def is_worth_a_wait(self, find_unaligned: Callable[[], list[str]]) -> bool:
        """Tells whether a request lacks a window that an answer could bring.

        Args:
            find_unaligned: Returns the requests that would have to go on without drafts.
        """
        if not self._followed or not self._wait_seconds:
            return False
        if all(link.is_late or not link.is_open for link in self._links):
            return False
        return any(request_id in self._followed for request_id in find_unaligned())

    async def wait_for_windows(self, find_unaligned: Callable[[], list[str]]) -> None:
        """Waits, for a bounded time, while a request without a window has an unanswered batch.

        Args:
            find_unaligned: Returns the requests that would have to go on without drafts.
        """
        awaited = self._find_awaited(find_unaligned)
        if not awaited:
            return
        metrics.PROPOSER_WAITS.inc()
        try:
            async with asyncio.timeout(self._wait_seconds):
                while awaited:
                    self._answered.clear()
                    await self._answered.wait()
                    awaited = self._find_awaited(find_unaligned)
        except TimeoutError:
            metrics.PROPOSER_LATE.inc()
            # Not waited for again before it answers anything.
            for link in awaited:
                link.is_late = True

    def _find_awaited(self, find_unaligned: Callable[[], list[str]]) -> list[ProposerLink]:
        links: list[ProposerLink] = []
        for request_id in find_unaligned():
            followed = self._followed.get(request_id)
            if followed and followed.link and followed.link.is_awaited(followed.batch):
                links.append(followed.link)
        return links

    def _note_change(self) -> None:
        self._answered.set()
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Sends all that is unsent, as far as links take it."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        while self._unsent or self._closed:
            link = self._choose_link()
            if link is None:
                return
            request, request_ids = self._build_batch(link)
            link.send(request, request_ids)

    def _choose_link(self) -> ProposerLink | None:
        for offset in range(len(self._links)):
            index = (self._next_link + offset) % len(self._links)
            if self._links[index].takes_batches:
                self._next_link = index + 1
                return self._links[index]
        return None

    def _build_batch(self, link: ProposerLink) -> tuple[proposer_pb2.ProposeRequest, list[str]]:
        request = proposer_pb2.ProposeRequest(batch=next(self._batches))
        request_ids: list[str] = []
        num_bytes = 0
        while self._unsent and len(request_ids) < MAX_BATCH_REQUESTS:
            if num_bytes >= MAX_BATCH_BYTES:
                break
            request_id = next(iter(self._unsent))
            del self._unsent[request_id]
            followed = self._followed[request_id]
            if followed.must_open:
                predicted = followed.predicted_token_ids
                request.opens.add(request_id=request_id, predicted_token_ids=predicted)
                num_bytes += len(predicted)
            if followed.num_sent_tokens < len(followed.token_ids):
                tokens = to_bytes(followed.token_ids[followed.num_sent_tokens :])
                position = followed.num_sent_tokens
                request.observations.add(request_id=request_id, position=position, token_ids=tokens)
                num_bytes += len(tokens)
            followed.must_open = False
            followed.num_sent_tokens = len(followed.token_ids)
            followed.batch, followed.link = request.batch, link
            request_ids.append(request_id)
        while self._closed and len(request.closed_request_ids) < MAX_BATCH_REQUESTS:
            request.closed_request_ids.append(self._closed.popleft())
        return request, request_ids

    def _take_response(
        self, request_ids: list[str], response: proposer_pb2.ProposeResponse
    ) -> None:
        gaps = {gap.request_id: gap.num_known_tokens for gap in response.gaps}
        for request_id in request_ids:
            followed = self._followed.get(request_id)
            if followed is None:
                continue
            if request_id not in gaps:
                followed.num_gaps = 0
            elif response.batch > followed.repaired_before:
                self._repair(request_id, followed, gaps[request_id])
        for window in response.windows:
            if window.request_id in self._followed:
                self._on_window(window.request_id, _window(window))
        self._answered.set()

    def _repair(self, request_id: str, followed: Followed, num_known_tokens: int) -> None:
        """Prepares to send again what a proposer lacks, ever later if that does not help."""
        followed.must_open = num_known_tokens < 0
        followed.num_sent_tokens = min(max(num_known_tokens, 0), followed.num_sent_tokens)
        followed.repaired_before = followed.batch
        followed.num_gaps += 1
        if followed.num_gaps == 1:
            self._unsent[request_id] = None
            self._flush_soon()
        else:
            self._unsent.pop(request_id, None)
            backoff = 2 ** min(followed.num_gaps, 16)
            followed.num_skipped_steps = min(backoff, LONGEST_BACKOFF_STEPS)


def _window(message: proposer_pb2.Window) -> Window:
    alternatives = tuple(
        Alternative(other.offset, other.prediction_offset, from_bytes(other.token_ids))
        for other in message.alternatives[:MAX_ALTERNATIVES]
    )
    token_ids = from_bytes(message.token_ids)
    return Window(message.epoch, message.base, message.prediction_offset, token_ids, alternatives)
