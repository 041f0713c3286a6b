"""Answers a generation request, whole or as events; the same for all endpoints."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from optimist_gateway.api.openai.exchange import EXCHANGE, Exchange
from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.error import ApiError
from optimist_gateway.core.request import Request as GenerationRequest
from optimist_gateway.generation.generation import Generation, Service
from optimist_gateway.observing.request_record import current_record
from optimist_gateway.security.beside import beside

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
# nginx's status for a client that went away; only logs and metrics see it.
CLIENT_CLOSED_REQUEST = 499
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx is not to collect chunks.
    (b"x-accel-buffering", b"no"),
]

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer, or events.", "content": {"text/event-stream": {"schema": {}}}}
}
"""What the document of the API says of answers beside their model."""


def event(data: Mapping[str, Any]) -> bytes:
    """Returns one event as it goes over the wire."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


class AnswerWriter(Protocol):
    """Writes one answer, as events or as a whole."""

    def piece(self, index: int, piece: Piece) -> bytes:
        """Returns the events of what a step adds to a choice, as they go over the wire."""
        ...

    def finish(self) -> bytes:
        """Returns the events that come after all pieces."""
        ...

    def fail(self, error: ApiError) -> bytes:
        """Returns the event that says that nothing more comes, and why."""
        ...

    def whole(self, pieces: Sequence[tuple[int, Piece]]) -> dict[str, Any]:
        """Returns the whole answer of pieces, each with the index of its choice."""
        ...


# Slots, so that those of each step lie together, as in all classes on the way of a token.
@dataclass(slots=True, eq=False)
class EventStream(Response):
    """Sends events as they come, comments while none come; ends if the client goes away.

    What a step of the model says is written to the connection in the call that brings it; the task
    that answers the request only begins and ends it. If the client reads too slowly, the generation
    pauses. An ApiError instead of the first event is raised, so that it is answered with its own
    status, unless the client has been sent a comment by then.
    """

    generation: Generation
    """The request, not yet running."""
    writer: AnswerWriter
    """Writes its events."""
    count: Callable[[str], None]
    """Called with how the request ended: a status, `disconnected` or `broken_stream`."""
    keep_alive_seconds: float
    """Silence after which a comment is sent."""
    _starting: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _exchange: Exchange | None = field(init=False, default=None)
    """Set once the head was sent."""
    _early: bytes = field(init=False, default=b"")
    """Events that wait for the head."""
    _has_events: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.status_code, self.background = 200, None
        self.raw_headers = [*_HEADERS, (b"x-request-id", self.generation.request_id.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        generation = self.generation
        generation.ended.add_done_callback(lambda _: self._has_events.set())
        async with _watched(generation, receive), _beside(self._keep_alive(scope, send)):
            data = await self._events(scope, send)
        await send({"type": "http.response.body", "body": data, "more_body": False})

    async def _events(self, scope: Scope, send: Send) -> bytes:
        """Sends all events but the last ones, which it returns."""
        generation = self.generation
        try:
            async with generation.running(self._add):
                await self._has_events.wait()
                if self._early:
                    await self._start(scope, send)
                await generation.wait()
        except ApiError as error:
            async with self._starting:
                if self._exchange is None:
                    raise
            current_record().error = error.code or ""
            self.count("broken_stream")
            return self.writer.fail(error)
        if generation.left:
            if self._exchange is None:
                self.status_code = CLIENT_CLOSED_REQUEST
            await self._start(scope, send)
            self.count("disconnected")
            return b""
        self.count("200")
        return self.writer.finish()

    def _add(self, index: int, piece: Piece) -> None:
        data = self.writer.piece(index, piece)
        if not data:
            return
        if self._exchange is None:
            self._early += data
            self._has_events.set()
            self.generation.pause()
            return
        self._exchange.write(data)

    async def _start(self, scope: Scope, send: Send) -> None:
        """Sends the head, if it was not sent, and what waits for it."""
        async with self._starting:
            if self._exchange is not None:
                return
            head = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **head})
            exchange: Exchange = scope["extensions"][EXCHANGE]["exchange"]
            generation = self.generation
            exchange.flow.on_pause, exchange.flow.on_resume = generation.pause, generation.resume
            if self._early:
                exchange.write(self._early)
                self._early = b""
            self._exchange = exchange
            if not exchange.flow.is_paused:
                generation.resume()

    async def _keep_alive(self, scope: Scope, send: Send) -> None:
        """Sends comments, each between two events, as events are written whole; returns never."""
        loop = asyncio.get_running_loop()
        silent_since = loop.time()
        while True:
            if self._exchange is not None:
                silent_since = max(silent_since, self._exchange.last_write)
            due = silent_since + self.keep_alive_seconds
            if loop.time() < due:
                await asyncio.sleep(due - loop.time())
                continue
            silent_since = loop.time()
            await self._start(scope, send)
            if self._exchange is not None and not self._exchange.flow.is_paused:
                self._exchange.write(KEEP_ALIVE)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs a task for the time of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _watched(generation: Generation, receive: Receive) -> AbstractAsyncContextManager[None]:
    """Ends the request if its client goes away inside the block; the body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.leave()

    return _beside(watch())


@dataclass(frozen=True)
class Answering:
    """Answers the requests of one endpoint."""

    service: Service
    endpoint: str
    id_prefix: str
    """What the names of answers begin with."""

    async def answer(
        self,
        http_request: Request,
        request: GenerationRequest,
        write: Callable[[Generation], AnswerWriter],
    ) -> Response:
        """Answers one request; `write` returns what writes its answer.

        Raises ApiError if nothing was sent yet and the request is wrong, not admitted, or failed.
        """
        request_id = f"{self.id_prefix}{uuid.uuid4().hex}"
        client_name = http_request.state.client_name
        generation = Generation(self.service, request, request_id, client_name)
        writer = write(generation)
        if request.stream:
            seconds = self.service.limits.keep_alive_seconds
            return EventStream(generation, writer, self._count, seconds)
        pieces: list[tuple[int, Piece]] = []
        running = generation.running(lambda *piece: pieces.append(piece))
        async with _watched(generation, http_request.receive), running:
            await generation.wait()
        if generation.left:
            self._count("disconnected")
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        data = await beside(lambda: orjson.dumps(writer.whole(pieces)), generation.size)
        self._count("200")
        headers = {"x-request-id": generation.request_id}
        return Response(data, headers=headers, media_type="application/json")

    def _count(self, outcome: str) -> None:
        current_record().outcome = outcome
        self.service.metrics.requests.labels(self.endpoint, outcome).inc()
