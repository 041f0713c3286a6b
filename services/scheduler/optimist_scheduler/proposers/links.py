"""The streams to proposers, what each request was sent, and whom to ask."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from optimist.proposer.v1 import proposer_pb2, proposer_pb2_grpc
from optimist_common.columns import to_bytes
from optimist_common.network.channel import Tls, open_channel
from optimist_common.network.endpoints import Change, Endpoints, Peer
from optimist_common.network.mailbox import Mailbox

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
MAX_UNANSWERED_BATCHES = 16
LONGEST_BACKOFF_STEPS = 64
SILENT_SECONDS = 2.0
"""A proposer that has answered nothing for so long, though it was to, is passed over."""

OnResponse = Callable[[list[str], proposer_pb2.ProposeResponse, float], None]


class Silence:
    """Begins when an answer is due for too long, and ends when none is due any more."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._has_begun = False

    def note_sent(self, now: float) -> None:
        """Notes that a batch was sent at a time, in seconds."""
        if self._since is None:
            self._since = now

    def note_answer(self, now: float, num_unanswered: int) -> None:
        """Notes that a batch was answered, and how many are not yet."""
        self._since = now if num_unanswered else None
        if not num_unanswered:
            self._has_begun = False

    def find(self, now: float) -> bool:
        """Returns whether the proposer is silent."""
        if self._since is not None and now - self._since > SILENT_SECONDS:
            self._has_begun = True
        return self._has_begun


class ProposerLink:
    """One Propose stream; while it is broken, batches are not taken and nothing is waited for."""

    def __init__(
        self,
        peer: Peer,
        on_response: OnResponse,
        on_change: Callable[["ProposerLink"], None],
        tls: Tls | None = None,
    ) -> None:
        """Sets up a link that is not connected until `run` is.

        `on_response` takes the request ids of an answered batch, the answer, and after how many
        seconds it came; it raises ValueError for one that is not understood. `on_change` is called
        when the stream was opened or broke, and when the proposer stops or begins again to take
        requests or to answer.
        """
        self.peer, self._tls = peer, tls
        self._on_response, self._on_change = on_response, on_change
        self._outbox: Mailbox[proposer_pb2.ProposeRequest] | None = None
        self._unanswered: dict[int, tuple[float, list[str]]] = {}
        self.num_requests = 0
        """Requests whose last batch went here."""
        self.is_late = False
        """Whether an answer was waited for in vain and nothing came since."""
        self.is_kept = True
        """Whether the stream is opened again when it breaks."""
        self._is_serving = True
        self._silence, self._is_silent = Silence(), False
        self._run: asyncio.Task[None] | None = None

    @property
    def is_willing(self) -> bool:
        """Whether the stream is open, and the proposer takes further requests and answers."""
        return self.is_open and self._is_serving and not self._is_silent

    @property
    def is_open(self) -> bool:
        """Whether the stream is open."""
        return self._outbox is not None

    @property
    def takes_batches(self) -> bool:
        """Whether the stream is open and not too many batches wait for an answer."""
        return self._outbox is not None and len(self._unanswered) < MAX_UNANSWERED_BATCHES

    def is_awaited(self, batch: int) -> bool:
        """Returns whether a batch is unanswered and its answer is worth a wait."""
        return batch in self._unanswered and not self.is_late

    def send(self, request: proposer_pb2.ProposeRequest, request_ids: list[str]) -> None:
        """Sends a batch that names these requests; only if `takes_batches`."""
        if self._outbox is None:
            raise RuntimeError(f"the stream to {self.peer.target} is not open")
        now = monotonic()
        self._unanswered[request.batch] = now, request_ids
        self._silence.note_sent(now)
        self._outbox.put(request)

    async def run(self) -> None:
        """Keeps the stream open, for ever or until it broke and `is_kept` is False."""
        pause, self._run = FIRST_PAUSE_SECONDS, asyncio.current_task()
        while self.is_kept:
            fault: Exception | None = None
            try:
                if await self._connect():
                    pause = FIRST_PAUSE_SECONDS
                reason = "it ended the stream"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except ValueError as error:
                reason = f"not understood: {error}"
            except Exception as error:
                # Requests go on without its drafts, whatever it is.
                reason, fault = "its answers cannot be taken", error
            target = self.peer.target
            logger.warning("no drafts from the proposer at %s: %s", target, reason, exc_info=fault)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def leave(self) -> None:
        """Ends the link when its stream breaks, at once if it is broken."""
        self.is_kept = False
        if self._run is not None and not self.is_open:
            self._run.cancel()

    async def _connect(self) -> bool:
        """Runs a stream as soon as the proposer is reached; returns whether it answered."""
        peer = self.peer
        async with open_channel(peer.target, self._tls, server_name=peer.server_name) as channel:
            await channel.channel_ready()
            return await self._stream(channel)

    async def _watch_health(self, channel: grpc.aio.Channel) -> None:
        """Follows whether the proposer takes requests; one that does not say does."""
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        try:
            async for response in watch:
                is_serving = response.status != health_pb2.HealthCheckResponse.NOT_SERVING
                if is_serving is not self._is_serving:
                    self._is_serving = is_serving
                    words = "takes requests again" if is_serving else "takes no more requests"
                    logger.info("the proposer at %s %s", self.peer.target, words)
                    self._on_change(self)
        except grpc.aio.AioRpcError as error:
            logger.debug("no health of the proposer at %s: %s", self.peer.target, error.details())

    async def _watch_for_silence(self) -> None:
        """Notices in bounded time that nothing is answered."""
        while True:
            await asyncio.sleep(SILENT_SECONDS / 4)
            self._look_for_silence()

    def _look_for_silence(self) -> None:
        is_silent = self._silence.find(monotonic())
        if is_silent is self._is_silent:
            return
        self._is_silent = is_silent
        if is_silent:
            logger.warning(
                "the proposer at %s has answered nothing for %g seconds: it gets no requests",
                *(self.peer.target, SILENT_SECONDS),
            )
        else:
            logger.info("the proposer at %s answers again", self.peer.target)
        self._on_change(self)

    async def _stream(self, channel: grpc.aio.Channel) -> bool:
        """Runs one stream to its end; returns whether anything was answered."""
        outbox: Mailbox[proposer_pb2.ProposeRequest] = Mailbox()
        stub = proposer_pb2_grpc.ProposerServiceStub(channel)
        call = stub.Propose(outbox.items())
        self._is_serving = True
        watches = [
            asyncio.create_task(self._watch_health(channel)),
            asyncio.create_task(self._watch_for_silence()),
        ]
        answered = False
        self._outbox = outbox
        logger.info("connected to the proposer at %s", self.peer.target)
        self._on_change(self)
        try:
            async for response in call:
                sent = self._unanswered.pop(response.batch, None)
                if sent is None:
                    raise ValueError(f"batch {response.batch} was not sent")
                now, (sent_at, request_ids) = monotonic(), sent
                answered, self.is_late = True, False
                self._silence.note_answer(now, len(self._unanswered))
                self._look_for_silence()
                self._on_response(request_ids, response, now - sent_at)
        finally:
            outbox.close()
            call.cancel()
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            self._outbox = None
            self._unanswered.clear()
            self.is_late, self._silence, self._is_silent = False, Silence(), False
            self._on_change(self)
        return answered


@dataclass(slots=True)
class Followed:
    """A request that proposers follow, and what of it was sent."""

    opening: proposer_pb2.Open
    token_ids: list[int] = field(default_factory=list)
    """Output so far, as far as it was observed."""
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
    has_bad_window: bool = False
    """Whether a window was refused, which is logged once."""

    def take(self, token_ids: list[int]) -> bool:
        """Takes new output; returns whether it is to be sent at once."""
        self.token_ids += token_ids
        if self.num_skipped_steps:
            self.num_skipped_steps -= 1
            return False
        return True

    def add_to(self, batch: proposer_pb2.ProposeRequest, link: ProposerLink) -> int:
        """Adds what is unsent to a batch for a proposer; returns its size in bytes."""
        num_bytes = 0
        if self.must_open:
            batch.opens.append(self.opening)
            num_bytes += self.opening.ByteSize()
        if self.num_sent_tokens < len(self.token_ids):
            tokens = to_bytes(self.token_ids[self.num_sent_tokens :])
            batch.observations.add(
                request_id=self.opening.request_id, position=self.num_sent_tokens, token_ids=tokens
            )
            num_bytes += len(tokens)
        if self.link is not link:
            if self.link is not None:
                self.link.num_requests -= 1
            link.num_requests += 1
        self.must_open = False
        self.num_sent_tokens = len(self.token_ids)
        self.batch, self.link = batch.batch, link
        return num_bytes

    def begin_anew(self) -> None:
        """Prepares to send another proposer everything."""
        self.must_open, self.num_sent_tokens = True, 0
        self.repaired_before = self.batch
        self.num_gaps = self.num_skipped_steps = 0

    def repair(self, num_known_tokens: int) -> bool:
        """Prepares to send again what a proposer lacks.

        Returns whether that is to be sent at once: if it did not help before, it waits ever longer.
        """
        self.must_open = num_known_tokens < 0
        self.num_sent_tokens = min(max(num_known_tokens, 0), self.num_sent_tokens)
        self.repaired_before = self.batch
        self.num_gaps += 1
        if self.num_gaps == 1:
            return True
        self.num_skipped_steps = min(2 ** min(self.num_gaps, 16), LONGEST_BACKOFF_STEPS)
        return False


class ProposerLinks:
    """A link to each proposer."""

    def __init__(
        self,
        addresses: Sequence[str],
        tls: Tls | None,
        take_response: OnResponse,
        note_change: Callable[[ProposerLink], None],
    ) -> None:
        """Sets up links that are not connected until `run` is.

        Each address of a name is a proposer.
        """
        self._tls, self._take_response, self._note_change = tls, take_response, note_change
        self._endpoints = Endpoints(addresses)
        self._links = [self._new_link(peer) for peer in self._endpoints.peers]
        self._runs = asyncio.TaskGroup()

    def __iter__(self) -> Iterator[ProposerLink]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)

    @property
    def has_willing(self) -> bool:
        """Whether there is one that takes requests and answers."""
        return any(link.is_willing for link in self._links)

    async def run(self) -> None:
        """Keeps all connected for ever, to those that the names resolve to."""
        async with self._runs as runs:
            for link in self._links:
                runs.create_task(self._keep(link))
            await self._endpoints.run(self._change)

    def find_least_loaded(self) -> ProposerLink | None:
        """Returns that with the fewest requests, of those that are not late if there are any.

        One that takes no requests only if none does; None while there is none.
        """
        return min(
            (link for link in self._links if link.is_open),
            key=lambda link: (not link.is_willing, link.is_late, link.num_requests),
            default=None,
        )

    def _new_link(self, peer: Peer) -> ProposerLink:
        return ProposerLink(peer, self._take_response, self._note_change, self._tls)

    def _change(self, change: Change) -> None:
        """Takes proposers in that appeared; those that vanished go with their streams."""
        for peer in change.appeared:
            # One that has left and is not open is at its end.
            there = [each for each in self._links if each.is_kept or each.is_open]
            link = next((each for each in there if each.peer == peer), None)
            if link is not None:
                link.is_kept = True
            else:
                logger.info("a proposer appeared at %s", peer.target)
                link = self._new_link(peer)
                self._links.append(link)
                self._runs.create_task(self._keep(link))
        for link in self._links:
            if link.peer in change.vanished:
                link.leave()

    async def _keep(self, link: ProposerLink) -> None:
        try:
            await link.run()
        except asyncio.CancelledError:
            if link.is_kept:
                raise
        logger.info("the proposer at %s is gone", link.peer.target)
        self._links.remove(link)
