"""However requests are cut into parts, each is read once and whole, with an offer or without."""

import asyncio
from itertools import pairwise
from typing import Any

import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from optimist_gateway.api.openai.connection_body import Outbox
from optimist_gateway.server.connection import HttpConnection
from optimist_gateway.settings import GatewaySettings

OFFERS = [
    b"",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"upgrade: x\r\nconnection: a, upgrade\r\n",
]
BODIES = st.binary(max_size=40) | st.sampled_from(
    [b"GET / HTTP/1.1\r\n\r\n", b"\r\nUpgrade: h2c\r\n"]
)
REQUESTS = st.lists(
    st.tuples(st.sampled_from(OFFERS), BODIES, st.booleans()), min_size=1, max_size=5
)


class Wire(asyncio.Transport):
    """The side of a connection that nobody reads from."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""


def wire_form(number: int, offer: bytes, body: bytes, is_chunked: bool) -> bytes:
    head = b"POST /%d HTTP/1.1\r\nhost: a\r\n%bx-number: %d\r\n" % (number, offer, number)
    if not is_chunked:
        return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


async def read(parts: list[bytes]) -> list[tuple[str, bytes, bytes]]:
    """Returns path, number and body of each request that comes in these parts."""
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, goes_on = b"", True
        while goes_on:
            message = await receive()
            body, goes_on = body + message["body"], message["more_body"]
        headers = dict(scope["headers"])
        assert b"upgrade" not in headers
        seen.append((scope["path"], headers[b"x-number"], body))
        start = {"type": "http.response.start", "status": 200}
        await send(start | {"headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    options: Any = {"settings": GatewaySettings(model="any"), "outbox": Outbox(0.0)}
    protocol = HttpConnection(config, ServerState(), {}, **options)
    protocol.connection_made(wire := Wire())
    for part in parts:
        protocol.data_received(part)
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert wire.written.count(b"HTTP/1.1 200 ") == len(seen)
    assert not wire.is_closed
    protocol.connection_lost(None)
    return seen


@given(REQUESTS, st.lists(st.integers(0, 2000), max_size=12))
def test_all_are_read_however_they_are_cut(
    requests: list[tuple[bytes, bytes, bool]], cuts: list[int]
) -> None:
    data = b"".join(wire_form(number, *one) for number, one in enumerate(requests))
    ends = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    parts = [data[start:end] for start, end in pairwise(ends)]
    expected = [(f"/{n}", b"%d" % n, body) for n, (_, body, _) in enumerate(requests)]
    assert asyncio.run(read(parts)) == expected
