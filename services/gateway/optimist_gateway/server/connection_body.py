"""Bodies of streamed answers on their way to connections."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Flow(Protocol):
    """A connection that tells how its client reads."""

    transport: asyncio.Transport
    on_pause: Callable[[], None]
    on_resume: Callable[[], None]

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
        """Lets a body be flushed once it is due."""
        loop = asyncio.get_running_loop()
        wait = self._interval - (loop.time() - body.last_write)
        if wait <= 0:
            if not self._due:
                loop.call_soon(self._flush_due)
            self._due.append(body)
        else:
            # Those of a step were written to together, so that they are due together.
            if not self._early:
                loop.call_later(wait, self._flush_early)
            self._early.append(body)

    def _flush_due(self) -> None:
        bodies, self._due = self._due, []
        self._flush(bodies)

    def _flush_early(self) -> None:
        bodies, self._early = self._early, []
        self._flush(bodies)

    def _flush(self, bodies: "list[ConnectionBody]") -> None:
        now = asyncio.get_running_loop().time()
        for body in bodies:
            body.flush()
            body.last_write = now


class ConnectionBody:
    """A `DirectBody`: what is left of an answer whose head says that it comes in chunks."""

    __slots__ = ("_data", "_flow", "_outbox", "_transport", "last_write")

    def __init__(self, flow: Flow, outbox: Outbox) -> None:
        self._flow, self._outbox = flow, outbox
        self._transport = flow.transport
        self._data = b""
        self.last_write = 0.0
        """See `DirectBody.last_write`."""

    @property
    def is_paused(self) -> bool:
        """See `DirectBody.is_paused`."""
        return self._flow.is_paused

    def write(self, data: bytes) -> None:
        """See `DirectBody.write`."""
        if self._data:
            self._data += data
        else:
            self._data = data
            self._outbox.add(self)

    def flush(self) -> None:
        """See `DirectBody.flush`."""
        data, self._data = self._data, b""
        if data and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def watch(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """See `DirectBody.watch`."""
        self._flow.on_pause, self._flow.on_resume = pause, resume
