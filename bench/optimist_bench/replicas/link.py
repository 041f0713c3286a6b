"""A stream of batches to one replica, opened again whenever it breaks."""

import asyncio
import time
from collections.abc import Callable

import grpc

from optimist.proposer.v1 import proposer_pb2, proposer_pb2_grpc
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
