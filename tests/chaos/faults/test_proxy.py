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


async def test_undisturbed_it_forwards_all_bytes_and_ends(
    server: Echo, proxy: FaultProxy, client: Connection
) -> None:
    payload = bytes(range(256)) * 8000
    client.send(payload)
    assert await client.read(len(payload)) == payload
    client.writer.write_eof()
    assert await client.reader.read() == b""
    await server.ended.wait()
    assert server.ends == ["eof"]


async def test_delays_are_felt_each_way_and_keep_bandwidth_and_order(
    proxy: FaultProxy, client: Connection
) -> None:
    await proxy.disturb(Disturbance(delay_seconds=0.2, jitter_seconds=0.05))
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(100):
        client.send(bytes([number]))
        await asyncio.sleep(0.001)
    assert await client.read(100) == bytes(range(100))
    # A hundred delays one behind the other would be forty seconds.
    assert 0.4 <= loop.time() - began < 4.0


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


async def test_drip_lets_so_many_bytes_pass(
    server: Echo, proxy: FaultProxy, client: Connection
) -> None:
    await proxy.disturb(Disturbance(bytes_per_second=1000))
    loop = asyncio.get_running_loop()
    began = loop.time()
    client.send(b"x" * 300)
    assert await client.read(300) == b"x" * 300
    assert loop.time() - began >= 0.25
    # What is on its way gets faster with the rest.
    client.send(b"y" * 100_000)
    await asyncio.sleep(SOON)
    assert len(server.received) < 10_000
    await proxy.disturb(UNDISTURBED)
    assert await client.read(100_000) == b"y" * 100_000


async def test_refusing_concerns_new_connections(proxy: FaultProxy, client: Connection) -> None:
    await client.echo(b"a")
    await proxy.disturb(Disturbance(refuses=True))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    await client.echo(b"b")
    await proxy.disturb(UNDISTURBED)
    async with connection(proxy) as client:
        await client.echo(b"c")
