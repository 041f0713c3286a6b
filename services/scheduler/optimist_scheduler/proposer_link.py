"""The stream of batches to one proposer, opened again whenever it breaks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import grpc

from optimist.proposer.v1 import proposer_pb2, proposer_pb2_grpc
from optimist_common.channel import open_channel
from optimist_common.tls import Tls

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
MAX_UNANSWERED_BATCHES = 16

OnResponse = Callable[[list[str], proposer_pb2.ProposeResponse], None]


class ProposerLink:
    """One Propose stream; while it is broken, batches are not taken and nothing is waited for."""

    def __init__(
        self,
        address: str,
        on_response: OnResponse,
        on_change: Callable[[], None],
        tls: Tls | None = None,
    ) -> None:
        """Sets up a link that is not connected until `run` is.

        Args:
            address: The proposer's host:port.
            on_response: Takes the request ids of an answered batch and the answer; raises
                ValueError for one that is not understood.
            on_change: Called when the stream was opened or broke.
            tls: How it is protected; None for plaintext.
        """
        self._address, self._tls = address, tls
        self._on_response, self._on_change = on_response, on_change
        self._outbox: asyncio.Queue[proposer_pb2.ProposeRequest] | None = None
        self._unanswered: dict[int, list[str]] = {}
        self.num_requests = 0
        """Requests whose last batch went here."""
        self.is_late = False
        """Whether an answer was waited for in vain and nothing came since."""

    @property
    def is_open(self) -> bool:
        """Whether the stream is open."""
        return self._outbox is not None

    @property
    def takes_batches(self) -> bool:
        """Whether the stream is open and not too many batches wait for an answer."""
        return self._outbox is not None and len(self._unanswered) < MAX_UNANSWERED_BATCHES

    def is_awaited(self, batch: int) -> bool:
        """Tells whether a batch is unanswered and its answer is worth a wait."""
        return batch in self._unanswered and not self.is_late

    def send(self, request: proposer_pb2.ProposeRequest, request_ids: list[str]) -> None:
        """Sends a batch that names these requests; only if `takes_batches`."""
        if self._outbox is None:
            raise RuntimeError(f"the stream to {self._address} is not open")
        self._unanswered[request.batch] = request_ids
        self._outbox.put_nowait(request)

    async def run(self) -> None:
        """Keeps the stream open for ever."""
        pause = FIRST_PAUSE_SECONDS
        async with open_channel(self._address, self._tls) as channel:
            stub = proposer_pb2_grpc.ProposerServiceStub(channel)
            while True:
                await channel.channel_ready()
                try:
                    if await self._stream(stub):
                        pause = FIRST_PAUSE_SECONDS
                    reason = "it ended the stream"
                except grpc.aio.AioRpcError as error:
                    reason = f"{error.code().name}: {error.details()}"
                except ValueError as error:
                    reason = f"not understood: {error}"
                logger.warning("no drafts from the proposer at %s: %s", self._address, reason)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _stream(self, stub: "proposer_pb2_grpc.ProposerServiceAsyncStub") -> bool:
        """Runs one stream to its end; returns whether anything was answered."""
        outbox: asyncio.Queue[proposer_pb2.ProposeRequest] = asyncio.Queue()
        call = stub.Propose(_until_cancelled(outbox))
        answered = False
        self._outbox = outbox
        logger.info("connected to the proposer at %s", self._address)
        self._on_change()
        try:
            async for response in call:
                request_ids = self._unanswered.pop(response.batch, None)
                if request_ids is None:
                    raise ValueError(f"batch {response.batch} was not sent")
                answered, self.is_late = True, False
                self._on_response(request_ids, response)
        finally:
            call.cancel()
            self._outbox = None
            self._unanswered.clear()
            self.is_late = False
            self._on_change()
        return answered


async def _until_cancelled(
    outbox: asyncio.Queue[proposer_pb2.ProposeRequest],
) -> AsyncIterator[proposer_pb2.ProposeRequest]:
    while True:
        yield await outbox.get()
