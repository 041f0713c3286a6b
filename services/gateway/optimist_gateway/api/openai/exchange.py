"""One request of a client and its answer, on a connection that others share in turn."""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from math import inf
from typing import Any

logger = logging.getLogger(__name__)

EXCHANGE = "optimist.exchange"
"""Extension of the ASGI scope whose `exchange` is the `Exchange`.

Layers of the application look at where an answer begins, and only there; passing all of its chunks
through each of them costs time, and a task would have to wake up for each.
"""
_HELD_BYTES = 2**16
"""Of a body that the application has not taken yet; reading pauses beyond it."""
STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
# nginx's, which only logs see.
STATUS_LINES[499] = b"HTTP/1.1 499 \r\n"


def nobody() -> None:
    """Takes what nobody wants to know."""


class Flow:
    """How much goes over a connection: both sides wait for one another, in bounds."""

    def __init__(self, transport: asyncio.Transport, slow_reader_seconds: float) -> None:
        """Drops a client that reads nothing of what waits for it for so long."""
        self.transport = transport
        self.on_pause: Callable[[], None] = nobody
        """Called when the client is late to read its answer."""
        self.on_resume: Callable[[], None] = nobody
        """Called when it has caught up."""
        self._seconds = slow_reader_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_held = False

    @property
    def is_paused(self) -> bool:
        """Whether the client has more to read than should be added to."""
        return not self._writable.is_set()

    async def until_writable(self) -> None:
        """Waits for a client that is late to read."""
        await self._writable.wait()

    def pause_writing(self) -> None:
        """Notes that the client does not read as fast as it is written to."""
        self._writable.clear()
        if self._timer is None:
            self._watch_reader()
        self.on_pause()

    def resume_writing(self) -> None:
        """Notes that the client reads, or has gone away."""
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.on_resume()

    def hold(self) -> None:
        """Reads no more for now."""
        if not self._is_held and not self.transport.is_closing():
            self._is_held = True
            self.transport.pause_reading()

    def release(self) -> None:
        """Reads on."""
        if self._is_held and not self.transport.is_closing():
            self._is_held = False
            self.transport.resume_reading()

    def _watch_reader(self) -> None:
        num_unread = self.transport.get_write_buffer_size()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, self._check_reader, num_unread)

    def _check_reader(self, num_unread: int) -> None:
        if self.transport.get_write_buffer_size() < num_unread:
            self._watch_reader()
        else:
            self.transport.abort()


class Outbox:
    """What waits to be written to connections: to the end of a turn of the event loop, or longer.

    A step of the model says something on many of them. To make all of it and then to write all of
    it takes less time than to do both for one after the other, as the processor's caches hold the
    one or the other. Several parts for a connection take one write.
    """

    def __init__(self, interval_seconds: float) -> None:
        """Begins empty; `interval_seconds` lie between two writes to one connection.

        The first part of a body and the last one, for which it is flushed, need not wait.
        """
        self._interval = interval_seconds
        self._due: list[Exchange] = []
        self._early: list[Exchange] = []

    def add(self, exchange: "Exchange") -> None:
        """Has what an exchange wrote flushed once it is due."""
        loop = asyncio.get_running_loop()
        wait = self._interval - (loop.time() - exchange.last_write)
        if wait <= 0:
            if not self._due:
                loop.call_soon(self._flush, self._due)
            self._due.append(exchange)
        else:
            # Those of a step were written to together, so that they are due together.
            if not self._early:
                loop.call_later(wait, self._flush, self._early)
            self._early.append(exchange)

    def _flush(self, waiting: "list[Exchange]") -> None:
        exchanges = waiting.copy()
        waiting.clear()
        now = asyncio.get_running_loop().time()
        for one in exchanges:
            one.flush()
            one.last_write = now


class Exchange:
    """A request and its answer: what the application receives and sends.

    The body of the answer goes in chunks, or has the length that the head says, or goes up to the
    end of the connection.
    """

    def __init__(
        self,
        scope: dict[str, Any],
        flow: Flow,
        outbox: Outbox,
        default_headers: list[tuple[bytes, bytes]],
        on_end: Callable[[], None],
        *,
        has_body: bool,
        keeps_alive: bool,
    ) -> None:
        """Takes the request; `on_end` is called once the answer is complete."""
        self._scope, self._on_end, self._default_headers = scope, on_end, default_headers
        self.flow, self._outbox = flow, outbox
        self._has_body, self._has_chunks = has_body, scope["http_version"] >= "1.1"
        """Whether the body of the answer is sent at all, and in chunks."""
        self.keeps_alive = keeps_alive
        """Whether another request may follow the answer."""
        self._is_asked = (b"expect", b"100-continue") in scope["headers"]
        """Whether the client waits to be asked for the body."""
        self._received = bytearray()
        self.is_whole = False
        """Whether the end of the body has come."""
        self.arrived = asyncio.Event()
        self.has_begun = self.has_ended = self._has_left = False
        """Of the answer, and of the client."""
        self._written = b""
        self.last_write = -inf
        """When something was sent last, by the event loop's clock."""
        scope["extensions"] = {EXCHANGE: {"exchange": self}}

    async def run(self, app: Any) -> None:
        """Has the application answer."""
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            logger.exception("%s %s failed", self._scope["method"], self._scope["path"])
        finally:
            # It leads back here.
            del self._scope["extensions"]

    def add(self, body: bytes) -> None:
        """Takes a part of the body."""
        self._received += body
        if len(self._received) > _HELD_BYTES:
            self.flow.hold()
        self.arrived.set()

    def leave(self) -> None:
        """Notes that the client went away."""
        self._has_left = True
        self.arrived.set()

    async def receive(self) -> dict[str, Any]:
        """Returns the next part of the body, or that the client went away."""
        if self._is_asked:
            self._is_asked = False
            if not self.flow.transport.is_closing():
                self.flow.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._has_left and not self.has_ended:
            self.flow.release()
            await self.arrived.wait()
            self.arrived.clear()
        if self._has_left or self.has_ended:
            return {"type": "http.disconnect"}
        body, self._received = bytes(self._received), bytearray()
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    async def send(self, message: Any) -> None:
        """Sends the head or a part of the body; does nothing once the client has gone away."""
        await self.flow.until_writable()
        if self._has_left or self.has_ended or self.flow.transport.is_closing():
            return
        if message["type"] == "http.response.start":
            head = self._head(message["status"], message["headers"])
            self.has_begun, self._is_asked = True, False
            self.flow.transport.write(head)
            return
        is_last = not message.get("more_body")
        self.flush(message.get("body", b""), is_last=is_last)
        if not is_last:
            return
        self.has_ended = True
        self.arrived.set()
        if not self.keeps_alive:
            self.flow.transport.close()
        self._on_end()

    def write(self, data: bytes) -> None:
        """Sends a part of the body, soon if not now; does nothing for a client that went away."""
        if self._written:
            self._written += data
        else:
            self._written = data
            self._outbox.add(self)

    def flush(self, data: bytes = b"", *, is_last: bool = False) -> None:
        """Sends what was written, and further data, now."""
        data, self._written = self._written + data, b""
        if self._has_chunks:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else data
            data += b"0\r\n\r\n" if is_last else b""
        if data and self._has_body and not self.flow.transport.is_closing():
            self.flow.transport.write(data)

    def _head(self, status: int, given: Any) -> bytes:
        headers = [*self._default_headers, *given]
        if any(b"\r" in part or b"\n" in part for header in headers for part in header):
            raise ValueError("a header has more than one line")
        known = {name.lower(): value.lower() for name, value in headers}
        self._has_body &= status not in (204, 304)
        if b"content-length" in known or not self._has_body:
            self._has_chunks = False
        elif self._has_chunks:
            headers.append((b"transfer-encoding", b"chunked"))
        else:
            # HTTP/1.0 knows no chunks: the body ends with the connection.
            self.keeps_alive = False
        self.keeps_alive = self.keeps_alive and known.get(b"connection") != b"close"
        if not self.keeps_alive and b"connection" not in known:
            headers.append((b"connection", b"close"))
        lines = [b"%b: %b\r\n" % header for header in headers]
        return b"".join([STATUS_LINES[status], *lines, b"\r\n"])
