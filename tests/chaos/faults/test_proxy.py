"""The proxy between real sockets: a server that echoes, and clients."""

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from tests.chaos.faults.proxy import BLACK_HOLE, UNDISTURBED, Disturbance, FaultProxy

SOON = 0.15
"""Long enough for what is not held to arrive, on a machine that is not busy."""
LATE = 20.0


class Echo:
    """Sends back what it gets, and remembers how connections ended."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.ends: list[str] = []
        self.ended = asyncio.Event()

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
async def echo() -> AsyncIterator[tuple[Echo, FaultProxy]]:
    one = Echo()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    proxy = FaultProxy(server.sockets[0].getsockname())
    await proxy.start()
    yield one, proxy
    await proxy.stop()
    server.close()


@contextlib.asynccontextmanager
async def client(
    proxy: FaultProxy,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def is_silent(reader: asyncio.StreamReader) -> bool:
    """Tells whether nothing comes, no end either."""
    try:
        async with asyncio.timeout(SOON):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def until_connections(proxy: FaultProxy, count: int) -> None:
    while proxy.num_connections != count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def read(reader: asyncio.StreamReader, size: int) -> bytes:
    async with asyncio.timeout(LATE):
        return await reader.readexactly(size)


async def echo_back(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes
) -> None:
    writer.write(data)
    assert await read(reader, len(data)) == data


Pair = tuple[Echo, FaultProxy]


async def test_undisturbed_it_forwards_all_bytes_and_ends(echo: Pair) -> None:
    server, proxy = echo
    payload = bytes(range(256)) * 8000
    async with client(proxy) as (reader, writer):
        writer.write(payload)
        assert await read(reader, len(payload)) == payload
        writer.write_eof()
        assert await reader.read() == b""
    await server.ended.wait()
    assert server.ends == ["eof"]
    await until_connections(proxy, 0)


async def test_delay_is_felt_each_way_and_keeps_bandwidth(echo: Pair) -> None:
    _, proxy = echo
    await proxy.disturb(Disturbance(delay_seconds=0.2))
    loop = asyncio.get_running_loop()
    async with client(proxy) as (reader, writer):
        began = loop.time()
        for _ in range(10):
            writer.write(b"x" * 1000)
            await asyncio.sleep(0.01)
        assert await read(reader, 10_000) == b"x" * 10_000
        # Ten delays one behind the other would be four seconds.
        assert 0.4 <= loop.time() - began < 4.0


async def test_jitter_changes_times_and_never_the_order(echo: Pair) -> None:
    _, proxy = echo
    await proxy.disturb(Disturbance(jitter_seconds=0.05))
    async with client(proxy) as (reader, writer):
        for number in range(100):
            writer.write(bytes([number]))
            await asyncio.sleep(0.001)
        assert await read(reader, 100) == bytes(range(100))


async def test_reset_reaches_both_ends(echo: Pair) -> None:
    server, proxy = echo
    async with client(proxy) as (reader, writer):
        await echo_back(reader, writer, b"hello")
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            await read(reader, 1)
    await server.ended.wait()
    assert server.ends == ["reset"]
    async with client(proxy) as (reader, writer):
        await echo_back(reader, writer, b"again")


async def test_a_client_that_resets_is_gone_at_the_server_too(echo: Pair) -> None:
    server, proxy = echo
    async with client(proxy) as (reader, writer):
        await echo_back(reader, writer, b"hello")
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    await server.ended.wait()
    assert server.ends == ["reset"]
    await until_connections(proxy, 0)


async def test_black_hole_keeps_everything_until_it_is_over(echo: Pair) -> None:
    server, proxy = echo
    async with client(proxy) as (reader, writer):
        await echo_back(reader, writer, b"a")
        await proxy.disturb(BLACK_HOLE)
        writer.write(b"b")
        async with client(proxy) as (late, late_writer):
            late_writer.write(b"c")
            assert await is_silent(reader)
            assert await is_silent(late)
            assert bytes(server.received) == b"a"
            await proxy.disturb(UNDISTURBED)
            assert await read(reader, 1) == b"b"
            assert await read(late, 1) == b"c"


async def test_black_hole_hides_that_a_side_has_gone(echo: Pair) -> None:
    server, proxy = echo
    async with client(proxy) as (reader, writer):
        await echo_back(reader, writer, b"a")
        await proxy.disturb(BLACK_HOLE)
    await asyncio.sleep(SOON)
    assert not server.ends
    await proxy.disturb(UNDISTURBED)
    await server.ended.wait()


@pytest.mark.parametrize("towards_server", [True, False])
async def test_half_open_holds_one_way(echo: Pair, towards_server: bool) -> None:
    server, proxy = echo
    async with client(proxy) as (reader, writer):
        await echo_back(reader, writer, b"a")
        await proxy.disturb(
            Disturbance(holds_requests=towards_server, holds_answers=not towards_server)
        )
        writer.write(b"b")
        assert await is_silent(reader)
        assert bytes(server.received) == (b"a" if towards_server else b"ab")
        await proxy.disturb(UNDISTURBED)
        assert await read(reader, 1) == b"b"


async def test_drip_lets_so_many_bytes_pass(echo: Pair) -> None:
    server, proxy = echo
    await proxy.disturb(Disturbance(bytes_per_second=1000))
    loop = asyncio.get_running_loop()
    async with client(proxy) as (reader, writer):
        began = loop.time()
        writer.write(b"x" * 300)
        assert await read(reader, 300) == b"x" * 300
        assert loop.time() - began >= 0.25
        # What is on its way gets faster with the rest.
        writer.write(b"y" * 100_000)
        await asyncio.sleep(SOON)
        assert len(server.received) < 10_000
        await proxy.disturb(UNDISTURBED)
        assert await read(reader, 100_000) == b"y" * 100_000


async def test_refusing_concerns_new_connections(echo: Pair) -> None:
    _, proxy = echo
    async with client(proxy) as (reader, writer):
        await echo_back(reader, writer, b"a")
        await proxy.disturb(Disturbance(refuses=True))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        await echo_back(reader, writer, b"b")
        await proxy.disturb(UNDISTURBED)
    async with client(proxy) as (reader, writer):
        await echo_back(reader, writer, b"c")


async def test_a_server_that_is_not_there_resets_its_clients() -> None:
    taken = await asyncio.start_server(Echo().serve, "127.0.0.1", 0)
    address = taken.sockets[0].getsockname()
    taken.close()
    proxy = FaultProxy(address)
    await proxy.start()
    async with client(proxy) as (reader, _):
        with pytest.raises(OSError) as caught:  # noqa: PT011
            await read(reader, 1)
    assert caught.value.errno == errno.ECONNRESET
    await proxy.stop()


async def test_a_stopped_proxy_leaves_no_task(echo: Pair) -> None:
    _, proxy = echo
    await proxy.disturb(BLACK_HOLE)
    async with client(proxy) as (reader, _), client(proxy):
        await until_connections(proxy, 2)
        await proxy.stop()
        assert not proxy.num_connections
        async with asyncio.timeout(LATE):
            assert await reader.read() == b""
