"""Server-sent events, and answers that notice when their client goes away."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from optimist_gateway.api.errors import ApiError

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
# nginx's status for a client that went away; only logs and metrics see it.
CLIENT_CLOSED_REQUEST = 499
DIRECT_SEND = "optimist.direct_send"
"""Extension of the ASGI scope whose `send` is the server's own.

Layers of the application look at where an answer begins, and only there; passing all of its chunks
through each of them costs time.
"""
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Tells nginx not to collect chunks.
    (b"x-accel-buffering", b"no"),
]


def event(data: dict[str, Any]) -> bytes:
    """Returns one event as it goes over the wire."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def chunk_beginning(header: dict[str, Any]) -> bytes:
    """Returns how the events of one stream begin; `chunk_event` ends them."""
    return b"data: " + orjson.dumps(header)[:-1] + b',"choices":['


def chunk_event(beginning: bytes, choice: dict[str, Any]) -> bytes:
    """Returns one event with one choice; what all of a stream have in common is written once."""
    return beginning + orjson.dumps(choice) + b"]}\n\n"


@asynccontextmanager
async def on_disconnect(receive: Receive, leave: Callable[[], None]) -> AsyncIterator[None]:
    """Calls `leave` if the client goes away inside the block; the body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()

    async with _beside(watch()):
        yield


class EventStream(Response):
    """Sends events as they come, comments while none come; ends if the client goes away.

    An ApiError instead of the first event is raised, so that it is answered with its own status,
    unless the client has been sent a comment by then.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        leave: Callable[[], None],
        request_id: str,
        keep_alive_seconds: float,
    ) -> None:
        """Takes what there is to send.

        Args:
            events: The events; closed at the end.
            leave: Called if the client goes away.
            request_id: Name of the request, for a header.
            keep_alive_seconds: Silence after which a comment is sent.
        """
        self.status_code = 200
        self.background = None
        self._events, self._leave = events, leave
        self._keep_alive_seconds = keep_alive_seconds
        self._is_started = False
        self._last_sent = 0.0
        self.raw_headers = [*_HEADERS, (b"x-request-id", request_id.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        loop = asyncio.get_running_loop()
        self._last_sent = loop.time()
        async with (
            on_disconnect(receive, self._leave),
            _beside(self._keep_alive(send)),
            aclosing(self._events) as events,
        ):
            data = await self._first_event()
            if data is None:
                self.status_code = CLIENT_CLOSED_REQUEST
            await self._start(send)
            send = scope.get("extensions", {}).get(DIRECT_SEND, {"send": send})["send"]
            while data is not None:
                await send({"type": "http.response.body", "body": data, "more_body": True})
                self._last_sent = loop.time()
                data = await anext(events, None)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _first_event(self) -> bytes | None:
        try:
            return await anext(self._events, None)
        except ApiError as error:
            if not self._is_started:
                raise
            return event(error.body())

    async def _start(self, send: Send) -> None:
        if self._is_started:
            return
        self._is_started = True
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )

    async def _keep_alive(self, send: Send) -> None:
        """Sends comments, each between two events, as events are sent whole; returns never."""
        loop = asyncio.get_running_loop()
        while True:
            due = self._last_sent + self._keep_alive_seconds
            if loop.time() < due:
                await asyncio.sleep(due - loop.time())
                continue
            self._last_sent = loop.time()
            await self._start(send)
            await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs a task for the time of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
