"""The proxy between real sockets: a server that echoes, and clients."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.faults.proxy import BLACK_HOLE, HALF_OPEN, UNDISTURBED, Disturbance, FaultProxy

SOON = 0.15
"""Long enough for what is not held to arrive, on a machine that is not busy."""
LATE = 20.0


class Echo:
    """Sends back what it gets, and remembers how connections ended."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.ends: list[str] = []
        self.ended = asyncio.Event()
        self.address = ("", 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.received += data
                writer.write(data)
                await writer.drain()
            self.ends.append("eof")
        except ConnectionError:
            self.ends.append("reset")
        self.ended.set()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Echo]:
    echo = Echo()
    async with await asyncio.start_server(echo.serve, "127.0.0.1", 0) as listening:
        echo.address = listening.sockets[0].getsockname()
        yield echo


@pytest.fixture
async def proxy(server: Echo) -> AsyncIterator[FaultProxy]:
    started = FaultProxy(server.address)
    await started.start()
    yield started
    await started.stop()


class Connection:
    """A client's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.send = writer.write

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(LATE):
            return await self.reader.readexactly(size)

    async def echo(self, data: bytes) -> None:
        self.send(data)
        assert await self.read(len(data)) == data

    async def is_silent(self) -> bool:
        """Tells whether nothing comes, no end either."""
        try:
            async with asyncio.timeout(SOON):
                await self.reader.read(1)
        except TimeoutError:
            return True
        return False


@asynccontextmanager
async def connection(proxy: FaultProxy) -> AsyncIterator[Connection]:
    client = Connection(*await asyncio.open_connection("127.0.0.1", proxy.port))
    try:
        yield client
    finally:
        client.writer.transport.abort()


@pytest.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Connection]:
    async with connection(proxy) as connected:
        yield connected


async def test_reset_reaches_both_ends(server: Echo, proxy: FaultProxy, client: Connection) -> None:
    await client.echo(b"hello")
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        await client.read(1)
    await server.ended.wait()
    assert server.ends == ["reset"]
    async with connection(proxy) as client:
        await client.echo(b"again")


@pytest.mark.parametrize(
    ("how", "received"), [(BLACK_HOLE, b"a"), (HALF_OPEN[True], b"a"), (HALF_OPEN[False], b"abc")]
)
async def test_a_held_way_keeps_everything_until_it_is_over(
    server: Echo, proxy: FaultProxy, client: Connection, how: Disturbance, received: bytes
) -> None:
    await client.echo(b"a")
    await proxy.disturb(how)
    client.send(b"b")
    assert await client.is_silent()
    async with connection(proxy) as late:
        late.send(b"c")
        assert await late.is_silent()
        assert bytes(server.received) == received
        await proxy.disturb(UNDISTURBED)
        assert await client.read(1) == b"b"
        assert await late.read(1) == b"c"
