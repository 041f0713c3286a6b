"""Bodies of streamed answers on their way to connections."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Protocol

DIRECT_BODY = "optimist.direct_body"
"""Extension of the ASGI scope whose `body` is a `ConnectionBody`.

Layers of the application look at where an answer begins, and only there; passing all of its chunks
through each of them costs time, and a task would have to wake up for each.
"""


class Flow(Protocol):
    """A connection that knows how its client reads."""

    transport: asyncio.Transport
    on_pause: Callable[[], None]
    """Called when the client is late to read its answer."""
    on_resume: Callable[[], None]
    """Called when it has caught up."""

    @property
    def is_paused(self) -> bool:
        """Whether the client has more to read than should be added to."""
        ...


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
    """The body of an answer whose head was sent.

    The head says that it comes in chunks, or it ends with the connection, which HTTP/1.0 has alone.
    """

    __slots__ = ("_data", "_has_chunks", "_outbox", "_transport", "flow", "last_write")

    def __init__(self, flow: Flow, outbox: Outbox, *, has_chunks: bool = True) -> None:
        self.flow, self._outbox, self._has_chunks = flow, outbox, has_chunks
        self._transport = flow.transport
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

    def flush(self) -> None:
        """Sends what was written, before something else is sent."""
        data, self._data = self._data, b""
        if data and not self._transport.is_closing():
            framed = b"%x\r\n%b\r\n" % (len(data), data) if self._has_chunks else data
            self._transport.write(framed)
