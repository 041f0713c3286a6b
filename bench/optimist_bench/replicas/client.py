"""What a scheduler does with replicas, without the scheduler: who is told what, and what then."""

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optimist.proposer.v1 import proposer_pb2
from optimist_bench.replicas.link import Link
from optimist_bench.replicas.target import SimulatedRequest, Window
from optimist_common.columns import to_bytes

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
        """Tells what is new of each request."""
        self.counts.steps += 1
        groups: dict[int, list[Followed]] = {}
        turn = self._find_link(self._next_link)
        self._next_link += 1
        for request in requests:
            followed = self._followed[request.request_id]
            number = self._find_link(followed.home) if self._stays else turn
            # Who is behind is not helped by others that know less: it is told later.
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
