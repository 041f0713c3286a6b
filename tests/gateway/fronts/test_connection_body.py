"""Parts of streamed answers are joined on their way, and none is lost or late."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from optimist_gateway.fronts.openai.connection_body import ConnectionBody, Outbox

NEVER = 3600.0


class Connection:
    """Takes note of what is written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False
        self.is_paused = False
        self.transport = cast("asyncio.Transport", self)
        self.on_pause: Callable[[], None] = lambda: None
        self.on_resume: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.is_closed


async def has_written(connection: Connection, number: int) -> None:
    for _ in range(10_000):
        if len(connection.written) >= number:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(connection.written)


async def test_what_one_turn_says_takes_one_write_for_each_connection() -> None:
    outbox = Outbox(0.0)
    connections = [Connection() for _ in range(3)]
    bodies = [ConnectionBody(connection, outbox) for connection in connections]
    for part in (b"ab", b"c"):
        for body in bodies[:2]:
            body.write(part)
    assert not any(connection.written for connection in connections)
    await asyncio.sleep(0)
    assert [connection.written for connection in connections] == [[b"3\r\nabc\r\n"]] * 2 + [[]]
    bodies[0].write(b"d" * 17)
    await asyncio.sleep(0)
    assert connections[0].written[1:] == [b"11\r\n" + b"d" * 17 + b"\r\n"]


async def test_what_comes_too_soon_waits_and_what_comes_first_or_last_does_not() -> None:
    outbox = Outbox(NEVER)
    connection, other = Connection(), Connection()
    body = ConnectionBody(connection, outbox)
    assert body.last_write < 0
    body.write(b"a")
    await asyncio.sleep(0)
    assert connection.written == [b"1\r\na\r\n"]
    assert body.last_write > 0
    for part in (b"b", b"c"):
        body.write(part)
        await asyncio.sleep(0.01)
    assert len(connection.written) == 1
    # One that waits keeps no other waiting.
    ConnectionBody(other, outbox).write(b"x")
    await asyncio.sleep(0)
    assert other.written == [b"1\r\nx\r\n"]
    body.flush()
    body.flush()
    assert connection.written[1:] == [b"2\r\nbc\r\n"]


async def test_what_waits_is_written_once_it_is_due() -> None:
    outbox = Outbox(0.02)
    connections = [Connection(), Connection()]
    bodies = [ConnectionBody(connection, outbox) for connection in connections]
    for part in (b"a", b"b", b"c"):
        for body in bodies:
            body.write(part)
        await asyncio.sleep(0)
    await has_written(connections[0], 2)
    assert [connection.written for connection in connections] == [
        [b"1\r\na\r\n", b"2\r\nbc\r\n"]
    ] * 2


@pytest.mark.parametrize("interval", [0.0, 0.01])
async def test_nothing_is_written_to_a_connection_that_closes(interval: float) -> None:
    outbox = Outbox(interval)
    connections = [Connection(), Connection()]
    bodies = [ConnectionBody(connection, outbox) for connection in connections]
    for body in bodies:
        body.write(b"a")
    await asyncio.sleep(0)
    for body in bodies:
        body.write(b"b")
    connections[0].is_closed = True
    await has_written(connections[1], 2)
    assert len(connections[0].written) == 1
