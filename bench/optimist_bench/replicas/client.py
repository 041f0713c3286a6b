"""What a scheduler does with replicas, without the scheduler: who gets what, and what then."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import grpc

from optimist.proposer.v1 import proposer_pb2, proposer_pb2_grpc
from optimist_bench.replicas.target import SimulatedRequest, Window
from optimist_common.columns import to_bytes
from optimist_common.network.channel import open_channel

# What waits meanwhile goes into one larger batch: more of them would only queue up.
_MAX_UNANSWERED = 2
_PAUSE_SECONDS = 0.05


class Link:
    """One replica as a scheduler sees it."""

    def __init__(
        self,
        address: str,
        on_response: Callable[["Link", list[str], proposer_pb2.ProposeResponse], None],
    ) -> None:
        """Is not connected until `run` is; hands over each answer with the batch's requests."""
        self._address, self._on_response = address, on_response
        self._outbox: asyncio.Queue[proposer_pb2.ProposeRequest] | None = None
        self._unanswered: dict[int, tuple[float, list[str]]] = {}
        self.opened = asyncio.Event()
        """Set once the stream was opened for the first time."""
        self.answer_seconds: list[float] = []
        """Time from a batch to its answer."""

    @property
    def is_open(self) -> bool:
        """Whether the stream is open."""
        return self._outbox is not None

    @property
    def takes_batches(self) -> bool:
        """Whether the stream is open and not too many batches are unanswered."""
        return self._outbox is not None and len(self._unanswered) < _MAX_UNANSWERED

    @property
    def is_idle(self) -> bool:
        """Whether every batch that can be answered was."""
        return not self._unanswered

    def send(self, request: proposer_pb2.ProposeRequest, request_ids: list[str]) -> None:
        """Sends a batch; only if `takes_batches`."""
        if self._outbox is None:
            raise RuntimeError(f"the stream to {self._address} is not open")
        self._unanswered[request.batch] = (time.perf_counter(), request_ids)
        self._outbox.put_nowait(request)

    async def run(self) -> None:
        """Keeps the stream open for ever."""
        async with open_channel(self._address) as channel:
            stub = proposer_pb2_grpc.ProposerServiceStub(channel)
            while True:
                await channel.channel_ready()
                try:
                    await self._stream(stub)
                except grpc.aio.AioRpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE:
                        raise
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _stream(self, stub: "proposer_pb2_grpc.ProposerServiceAsyncStub") -> None:
        outbox: asyncio.Queue[proposer_pb2.ProposeRequest] = asyncio.Queue()
        call = stub.Propose()
        writer = asyncio.create_task(_write(call, outbox))
        self._outbox = outbox
        self.opened.set()
        try:
            async for response in call:
                sent_at, request_ids = self._unanswered.pop(response.batch)
                self.answer_seconds.append(time.perf_counter() - sent_at)
                self._on_response(self, request_ids, response)
        finally:
            call.cancel()
            writer.cancel()
            # A broken stream shows where it is read too.
            await asyncio.gather(writer, return_exceptions=True)
            self._outbox = None
            self._unanswered.clear()


async def _write(
    call: "grpc.aio.StreamStreamCall[proposer_pb2.ProposeRequest, proposer_pb2.ProposeResponse]",
    outbox: asyncio.Queue[proposer_pb2.ProposeRequest],
) -> None:
    while True:
        await call.write(await outbox.get())


_TENANT = "bench"


@dataclass(slots=True)
class Followed:
    """A request and what of it was sent."""

    request: SimulatedRequest
    home: int
    """Number of the replica that it stays at, if requests stay."""
    num_sent: int = 0
    must_open: bool = True


@dataclass(slots=True)
class Counts:
    """What happened, over all requests."""

    observations: int = 0
    windows: int = 0
    gaps: int = 0
    reopened: int = 0
    """Gaps of requests that the replica did not know at all."""
    late_steps: int = 0
    """Steps after which the next pass began without all answers."""
    steps: int = 0


class FleetClient:
    """Opens and observes requests at replicas, round robin or each at one of them.

    A replica that lacks tokens is sent them again, and one that does not know a request is sent
    everything: it is the one that knows what it lacks.
    """

    def __init__(self, addresses: Sequence[str], *, stays: bool) -> None:
        """Connects when `run` is.

        Args:
            addresses: host:port of each replica.
            stays: Whether a request stays at one replica while it is there.
        """
        self.links = [Link(address, self._take) for address in addresses]
        self.counts = Counts()
        self._stays = stays
        self._followed: dict[str, Followed] = {}
        self._batches = itertools.count(1)
        self._next_link = 0
        self._answered = asyncio.Event()

    async def run(self) -> None:
        """Keeps all streams open for ever."""
        async with asyncio.TaskGroup() as tasks:
            for link in self.links:
                tasks.create_task(link.run())

    def open(self, request: SimulatedRequest) -> None:
        """Follows a request from now on; it is opened with the next step."""
        home = len(self._followed) % len(self.links)
        self._followed[request.request_id] = Followed(request, home)

    def send_step(self, requests: Iterable[SimulatedRequest]) -> None:
        """Sends what is new of each request."""
        self.counts.steps += 1
        groups: dict[int, list[Followed]] = {}
        turn = self._find_link(self._next_link)
        self._next_link += 1
        for request in requests:
            followed = self._followed[request.request_id]
            number = self._find_link(followed.home) if self._stays else turn
            # One that lacks something is not helped by others that know less: it gets it later.
            if number is not None and self.links[number].takes_batches:
                groups.setdefault(number, []).append(followed)
        for number, members in groups.items():
            self._send(self.links[number], members)

    async def wait(self, seconds: float) -> None:
        """Waits until all batches are answered, for so long at most."""
        try:
            async with asyncio.timeout(seconds):
                while not all(link.is_idle for link in self.links):
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            self.counts.late_steps += 1

    def close(self, request_ids: Sequence[str]) -> None:
        """Ends requests, at one replica, as a scheduler does."""
        number = self._find_link(0)
        if number is not None:
            message = proposer_pb2.ProposeRequest(
                batch=next(self._batches), closed_request_ids=request_ids
            )
            self.links[number].send(message, [])

    def _find_link(self, first: int) -> int | None:
        """Returns the first replica from a number on that is there."""
        for offset in range(len(self.links)):
            number = (first + offset) % len(self.links)
            if self.links[number].is_open:
                return number
        return None

    def _send(self, link: Link, members: Sequence[Followed]) -> None:
        message = proposer_pb2.ProposeRequest(batch=next(self._batches))
        for followed in members:
            request = followed.request
            if followed.must_open:
                message.opens.add(
                    request_id=request.request_id,
                    predicted_token_ids=to_bytes(request.predicted),
                    tenant=_TENANT,
                )
            if followed.num_sent < len(request.output):
                message.observations.add(
                    request_id=request.request_id,
                    position=followed.num_sent,
                    token_ids=to_bytes(request.output[followed.num_sent :]),
                )
                self.counts.observations += 1
            followed.must_open = False
            followed.num_sent = len(request.output)
        link.send(message, [followed.request.request_id for followed in members])

    def _take(
        self, link: Link, request_ids: list[str], response: proposer_pb2.ProposeResponse
    ) -> None:
        for refusal in response.refusals:
            raise RuntimeError(f"request {refusal.request_id} was refused: {refusal.reason}")
        self.counts.windows += len(response.windows)
        for window in response.windows:
            self._followed[window.request_id].request.take_window(Window.read(window))
        lacking: list[Followed] = []
        for gap in response.gaps:
            self.counts.gaps += 1
            self.counts.reopened += gap.num_known_tokens < 0
            followed = self._followed[gap.request_id]
            followed.must_open = gap.num_known_tokens < 0
            followed.num_sent = max(gap.num_known_tokens, 0)
            lacking.append(followed)
        if lacking and link.takes_batches:
            self._send(link, lacking)
        self._answered.set()
