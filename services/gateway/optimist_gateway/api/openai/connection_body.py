"""Bodies of answers on their way to connections."""

import asyncio
from collections.abc import Callable
from math import inf

DIRECT_BODY = "optimist.direct_body"
"""Extension of the ASGI scope whose `body` is a `ConnectionBody`.

Layers of the application look at where an answer begins, and only there; passing all of its chunks
through each of them costs time, and a task would have to wake up for each.
"""


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
        self._due: list[ConnectionBody] = []
        self._early: list[ConnectionBody] = []

    def add(self, body: "ConnectionBody") -> None:
        """Has a body flushed once it is due."""
        loop = asyncio.get_running_loop()
        wait = self._interval - (loop.time() - body.last_write)
        if wait <= 0:
            if not self._due:
                loop.call_soon(self._flush, self._due)
            self._due.append(body)
        else:
            # Those of a step were written to together, so that they are due together.
            if not self._early:
                loop.call_later(wait, self._flush, self._early)
            self._early.append(body)

    def _flush(self, waiting: "list[ConnectionBody]") -> None:
        bodies = waiting.copy()
        waiting.clear()
        now = asyncio.get_running_loop().time()
        for body in bodies:
            body.flush()
            body.last_write = now


class ConnectionBody:
    """The body of an answer: in chunks, or of the length that the head says, or up to the end."""

    __slots__ = ("_data", "_outbox", "flow", "has_body", "has_chunks", "last_write")

    def __init__(self, flow: Flow, outbox: Outbox) -> None:
        self.flow, self._outbox = flow, outbox
        self.has_body = self.has_chunks = True
        """Whether it is sent at all, and in chunks."""
        self._data = b""
        self.last_write = -inf
        """When something was sent last, by the event loop's clock."""

    def write(self, data: bytes) -> None:
        """Sends a part, soon if not now; does nothing once the client has gone away."""
        if self._data:
            self._data += data
        else:
            self._data = data
            self._outbox.add(self)

    def flush(self, data: bytes = b"", *, is_last: bool = False) -> None:
        """Sends what was written, and further data, now."""
        data, self._data = self._data + data, b""
        if self.has_chunks:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else data
            data += b"0\r\n\r\n" if is_last else b""
        if data and self.has_body and not self.flow.transport.is_closing():
            self.flow.transport.write(data)
