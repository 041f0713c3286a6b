"""A client that writes bytes and reads bytes."""

import asyncio
import contextlib
import json
from typing import Any

from tests.gateway.harness import Gateway

JSON = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def streamed(*headers: bytes, **fields: Any) -> bytes:
    """A request for a streamed completion."""
    body = json.dumps({"model": "tiny", "prompt": "a", "stream": True, **fields}).encode()
    lines = b"".join(header + b"\r\n" for header in headers)
    return JSON + lines + b"content-length: %d\r\n\r\n" % len(body) + body


async def exchange(gateway: Gateway, *parts: bytes, pause: float = 0.0) -> bytes:
    """Sends bytes and returns all that comes until the connection is closed by the other side."""
    reader, writer = await gateway.connect()
    received = asyncio.create_task(read_all(reader))
    with contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
    try:
        return await asyncio.wait_for(received, 20)
    finally:
        writer.close()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        while more := await reader.read(65536):
            data += more
    return data


def error_of(answer: bytes, status: int) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    assert b"content-type: application/json" in head.lower()
    assert len(answer) < 4096
    return json.loads(body)["error"]
