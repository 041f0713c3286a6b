"""A TCP proxy that disturbs what it forwards; how can be changed at any time."""

import asyncio
import random
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

_CHUNK_BYTES = 1 << 16
# Chunks that are read ahead of a slow or blocked way; the sender feels it beyond.
_MAX_CHUNKS = 16
_DRIP_SECONDS = 0.05
_LINGER_ZERO = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Disturbance:
    """What a proxy does to everything that passes it."""

    delay_seconds: float = 0.0
    """Added to each way, without loss of bandwidth."""
    jitter_seconds: float = 0.0
    """Most that is added to the delay by chance; nothing overtakes."""
    bytes_per_second: float = 0.0
    """How fast each way is; 0 for as fast as it goes."""
    holds_requests: bool = False
    """Nothing gets from the client to the server, and no new connection either."""
    holds_answers: bool = False
    """Nothing gets from the server to the client."""
    refuses: bool = False
    """The port refuses new connections, as if nobody listened."""

    def holds(self, *, towards_server: bool) -> bool:
        """Tells whether a way is held."""
        return self.holds_requests if towards_server else self.holds_answers


Arrived = asyncio.Queue[tuple[float, bytes | OSError]]
"""What was read, or how reading ended, and when it is due."""
UNDISTURBED = Disturbance()
BLACK_HOLE = Disturbance(holds_requests=True, holds_answers=True)
HALF_OPEN = Disturbance(holds_answers=True), Disturbance(holds_requests=True)
"""Of either way, by whether it is that towards the server."""


class FaultProxy:
    """Forwards connections to one address; what it holds back is forwarded when it may again.

    A held way hides the end of a connection too, as a network that loses every packet does.
    """

    def __init__(self, target: tuple[str, int], seed: int = 0) -> None:
        """Listens nowhere yet; `target` is the server's host and port, `seed` of the jitter."""
        self.port = 0
        self._target = target
        self._rng = random.Random(seed)
        self._disturbance = UNDISTURBED
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._refusing: socket.socket | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        """Both ends of each, the client's first."""

    async def start(self) -> None:
        """Listens on a free port of the loopback."""
        await self._listen(_bind(0))

    async def disturb(self, disturbance: Disturbance) -> None:
        """Does so from now on, to present connections and new ones."""
        was_refusing, self._disturbance = self._disturbance.refuses, disturbance
        self._changed.set()
        self._changed = asyncio.Event()
        if disturbance.refuses and not was_refusing and self._server is not None:
            self._server.close()
            # Bound but not listening: refuses, and keeps the port from others.
            self._refusing = _bind(self.port)
        if was_refusing and not disturbance.refuses and self._refusing is not None:
            await self._listen(self._refusing)
            self._refusing = None

    def reset(self) -> None:
        """Ends all present connections with a reset, at both ends."""
        for task, ends in self._connections.items():
            _reset(ends)
            task.cancel()

    async def stop(self) -> None:
        """Closes everything."""
        if self._refusing is not None:
            self._refusing.close()
        elif self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)

    async def _listen(self, bound: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=bound)
        self.port = bound.getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards until both ways have ended, or one is reset."""
        task = asyncio.current_task()
        assert task is not None
        ends = self._connections[task] = [writer]
        try:
            # Only this proxy cancels it.
            with suppress(asyncio.CancelledError):
                await self._forward(reader, ends)
        except* OSError:
            # The server is not there, or one side has gone without a word.
            _reset(ends)
        finally:
            for end in ends:
                end.close()
            del self._connections[task]

    async def _forward(
        self, client: asyncio.StreamReader, ends: list[asyncio.StreamWriter]
    ) -> None:
        await self._until_free(towards_server=True)
        server, writer = await asyncio.open_connection(*self._target)
        ends.append(writer)
        async with asyncio.TaskGroup() as tasks:
            for source, target, towards_server in (
                (client, ends[1], True),
                (server, ends[0], False),
            ):
                arrived: Arrived = asyncio.Queue(_MAX_CHUNKS)
                tasks.create_task(self._read(source, arrived))
                tasks.create_task(self._deliver(arrived, target, towards_server))

    async def _read(self, source: asyncio.StreamReader, arrived: Arrived) -> None:
        """Reads to the end; what arrives is due after the delay of now, but nothing overtakes."""
        loop, due = asyncio.get_running_loop(), 0.0
        while True:
            data: bytes | OSError
            try:
                data = await source.read(_CHUNK_BYTES)
            except OSError as error:
                data = error
            now = self._disturbance
            delay = now.delay_seconds + self._rng.random() * now.jitter_seconds
            due = max(due, loop.time() + delay)
            await arrived.put((due, data))
            if not data or isinstance(data, OSError):
                return

    async def _deliver(
        self, arrived: Arrived, target: asyncio.StreamWriter, towards_server: bool
    ) -> None:
        """Forwards one way to its end; raises OSError if either side is reset."""
        loop = asyncio.get_running_loop()
        while True:
            due, data = await arrived.get()
            await asyncio.sleep(max(due - loop.time(), 0.0))
            await self._until_free(towards_server=towards_server)
            if isinstance(data, OSError):
                raise data
            if not data:
                target.write_eof()
                return
            while data:
                rate = self._disturbance.bytes_per_second
                size = max(1, int(rate * _DRIP_SECONDS)) if rate else len(data)
                piece, data = data[:size], data[size:]
                target.write(piece)
                await target.drain()
                if rate:
                    await asyncio.sleep(len(piece) / rate)
                    await self._until_free(towards_server=towards_server)

    async def _until_free(self, *, towards_server: bool) -> None:
        """Waits while a way is held."""
        while self._disturbance.holds(towards_server=towards_server):
            await self._changed.wait()


def _reset(ends: Iterable[asyncio.StreamWriter]) -> None:
    for end in ends:
        connection = end.get_extra_info("socket")
        # asyncio has closed the one whose error it raised.
        if connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            end.transport.abort()


def _bind(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    bound.setblocking(False)
    return bound
