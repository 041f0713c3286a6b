"""The proposers that there are, as their names say, and which of them to ask."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from optimist.proposer.v1 import proposer_pb2
from optimist_common.network.channel import Tls
from optimist_common.network.endpoints import Change, Endpoints, Peer
from optimist_scheduler.proposers.link import ProposerLink

logger = logging.getLogger(__name__)

TakeResponse = Callable[[list[str], proposer_pb2.ProposeResponse], None]
NoteChange = Callable[[ProposerLink], None]


class ProposerLinks:
    """A link to each proposer."""

    def __init__(
        self,
        addresses: Sequence[str],
        tls: Tls | None,
        take_response: TakeResponse,
        note_change: NoteChange,
    ) -> None:
        """Sets up links that are not connected until `run` is.

        Args:
            addresses: Names and ports of the proposers; each address of a name is one.
            tls: How streams are protected; None for plaintext.
            take_response: Takes the answer to a batch of some requests.
            note_change: Called when a proposer came, went, or answered anything.
        """
        self._tls, self._take_response, self._note_change = tls, take_response, note_change
        self._endpoints = Endpoints(addresses)
        self._links = [self._new_link(peer) for peer in self._endpoints.peers]
        self._runs: asyncio.TaskGroup | None = None
        self._next = 0

    def __iter__(self) -> Iterator[ProposerLink]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)

    async def run(self) -> None:
        """Keeps all connected for ever, to those that the names resolve to."""
        async with asyncio.TaskGroup() as tasks:
            self._runs = tasks
            for link in self._links:
                tasks.create_task(self._keep(link))
            await self._endpoints.run(self._change)

    def find_least_loaded(self) -> ProposerLink | None:
        """Returns that with the fewest requests; None while there is none."""
        return min(self._present(), key=lambda link: link.num_requests, default=None)

    def take_turn(self) -> ProposerLink | None:
        """Returns the next one that takes a batch; None if none does."""
        present = self._present()
        for offset in range(len(present)):
            index = (self._next + offset) % len(present)
            if present[index].takes_batches:
                self._next = index + 1
                return present[index]
        return None

    def _present(self) -> list[ProposerLink]:
        """Returns those that take requests, or those that are there at all if none does."""
        there = [link for link in self._links if link.is_open]
        return [link for link in there if link.is_willing] or there

    def _new_link(self, peer: Peer) -> ProposerLink:
        return ProposerLink(peer, self._take_response, self._note_change, self._tls)

    def _change(self, change: Change) -> None:
        """Takes proposers in that appeared; those that vanished go with their streams."""
        for peer in change.appeared:
            link = next((each for each in self._links if each.peer == peer), None)
            if link is not None:
                link.is_kept = True
            elif self._runs is not None:
                logger.info("a proposer appeared at %s", peer.target)
                link = self._new_link(peer)
                self._links.append(link)
                self._runs.create_task(self._keep(link))
        for link in self._links:
            if link.peer in change.vanished:
                link.leave()

    async def _keep(self, link: ProposerLink) -> None:
        await link.run()
        logger.info("the proposer at %s is gone", link.peer.target)
        self._links.remove(link)
