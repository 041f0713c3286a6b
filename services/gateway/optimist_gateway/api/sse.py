"""Server-sent events, and answers that notice when their client goes away."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Tells nginx not to collect chunks.
    (b"x-accel-buffering", b"no"),
]


def event(data: dict[str, Any]) -> bytes:
    """Returns one event as it goes over the wire."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


@asynccontextmanager
async def on_disconnect(receive: Receive, leave: Callable[[], None]) -> AsyncIterator[None]:
    """Calls `leave` if the client goes away inside the block; the body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


class EventStream(Response):
    """Sends events as they come; calls `leave` if the client goes away meanwhile."""

    def __init__(
        self,
        first: bytes,
        events: AsyncGenerator[bytes, None],
        leave: Callable[[], None],
        request_id: str,
    ) -> None:
        """Takes the first event and the generator of the others, which is closed at the end."""
        self.status_code = 200
        self.background = None
        self._first = first
        self._events = events
        self._leave = leave
        self.raw_headers = [*_HEADERS, (b"x-request-id", request_id.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        async with on_disconnect(receive, self._leave), aclosing(self._events) as events:
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for data in events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
