"""One request of a client and its answer, as an ASGI application receives and sends them."""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from optimist_gateway.api.openai.connection_body import DIRECT_BODY, ConnectionBody

logger = logging.getLogger(__name__)

_HELD_BYTES = 2**16
"""Of a body that the application has not taken yet; reading pauses beyond it."""
STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
# nginx's, which only logs see.
STATUS_LINES[499] = b"HTTP/1.1 499 \r\n"


class Exchange:
    """A request and its answer: what the application receives and sends."""

    def __init__(
        self,
        scope: dict[str, Any],
        answer: ConnectionBody,
        default_headers: list[tuple[bytes, bytes]],
        on_end: Callable[[], None],
        *,
        keeps_alive: bool,
    ) -> None:
        """Takes the request; `on_end` is called once the answer is complete."""
        self._scope, self._answer, self._on_end = scope, answer, on_end
        self._flow, self._default_headers = answer.flow, default_headers
        self.keeps_alive = keeps_alive
        """Whether another request may follow the answer."""
        self._is_asked = (b"expect", b"100-continue") in scope["headers"]
        """Whether the client waits to be asked for the body."""
        self._body = bytearray()
        self.is_whole = False
        """Whether the end of the body has come."""
        self.arrived = asyncio.Event()
        self.has_begun = self.has_ended = self._has_left = False
        """Of the answer, and of the client."""
        answer.has_chunks = scope["http_version"] >= "1.1"
        scope["extensions"] = {DIRECT_BODY: {"body": answer}}

    async def run(self, app: Any) -> None:
        """Has the application answer."""
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            logger.exception("%s %s failed", self._scope["method"], self._scope["path"])

    def add(self, body: bytes) -> None:
        """Takes a part of the body."""
        self._body += body
        if len(self._body) > _HELD_BYTES:
            self._flow.hold()
        self.arrived.set()

    def leave(self) -> None:
        """Notes that the client went away."""
        self._has_left = True
        self.arrived.set()

    async def receive(self) -> dict[str, Any]:
        """Returns the next part of the body, or that the client went away."""
        if self._is_asked:
            self._is_asked = False
            if not self._flow.transport.is_closing():
                self._flow.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._has_left and not self.has_ended:
            self._flow.release()
            await self.arrived.wait()
            self.arrived.clear()
        if self._has_left or self.has_ended:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    async def send(self, message: Any) -> None:
        """Sends the head or a part of the body; does nothing once the client has gone away."""
        await self._flow.until_writable()
        if self._has_left or self.has_ended or self._flow.transport.is_closing():
            return
        if message["type"] == "http.response.start":
            head = self._head(message["status"], message["headers"])
            self.has_begun, self._is_asked = True, False
            self._flow.transport.write(head)
            return
        is_last = not message.get("more_body")
        self._answer.flush(message.get("body", b""), is_last=is_last)
        if not is_last:
            return
        self.has_ended = True
        self.arrived.set()
        if not self.keeps_alive:
            self._flow.transport.close()
        self._on_end()

    def _head(self, status: int, given: Any) -> bytes:
        headers = [*self._default_headers, *given]
        if any(b"\r" in part or b"\n" in part for header in headers for part in header):
            raise ValueError("a header has more than one line")
        known = {name.lower(): value.lower() for name, value in headers}
        self._answer.has_body &= status not in (204, 304)
        if b"content-length" in known or not self._answer.has_body:
            self._answer.has_chunks = False
        elif self._answer.has_chunks:
            headers.append((b"transfer-encoding", b"chunked"))
        else:
            # HTTP/1.0 knows no chunks: the body ends with the connection.
            self.keeps_alive = False
        self.keeps_alive = self.keeps_alive and known.get(b"connection") != b"close"
        if not self.keeps_alive and b"connection" not in known:
            headers.append((b"connection", b"close"))
        lines = [b"%b: %b\r\n" % header for header in headers]
        return b"".join([STATUS_LINES[status], *lines, b"\r\n"])
