"""Streaming requests to a gateway, from a process of their own that does as little as it can."""

import asyncio
import json
import sys
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any


@dataclass(slots=True)
class Arrivals:
    """What one connection has read, and when."""

    data: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=list)
    """How many bytes there were after each read."""
    times_ns: list[int] = field(default_factory=list)

    def read_chunks(self) -> Iterator[tuple[int, bytes]]:
        """Iterates over the chunks of the body, each with the time when it was complete.

        Raises:
            RuntimeError: The answer is not a complete, chunked one with status 200.
        """
        data, start = bytes(self.data), self.data.find(b"\r\n\r\n") + 4
        head = data[:start].lower()
        if b" 200 " not in head[:16] or b"transfer-encoding: chunked" not in head:
            raise RuntimeError(f"the gateway answers {data[:500]!r}")
        while True:
            line_end = data.find(b"\r\n", start)
            size = int(data[start:line_end] or b"0", 16) if line_end > 0 else 0
            if size == 0:
                break
            start = line_end + 2 + size + 2
            yield self.times_ns[bisect_left(self.ends, start)], data[line_end + 2 : start - 2]
        if not data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            raise RuntimeError(f"an answer is not complete: ...{data[-300:]!r}")

    def read_texts(self) -> list[tuple[int, str]]:
        """Returns the pieces of the answer's text, each with the time when it was there."""
        texts: list[tuple[int, str]] = []
        for now_ns, chunk in self.read_chunks():
            for event in chunk.split(b"\n\n"):
                if event and event != b"data: [DONE]" and not event.startswith(b":"):
                    choice = json.loads(event.removeprefix(b"data: "))["choices"][0]
                    texts.append((now_ns, choice["delta"].get("content") or ""))
        return texts


class _Connection(asyncio.Protocol):
    """Reads one answer up to the end of the connection."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.arrivals.times_ns.append(perf_counter_ns())
        self.arrivals.data += data
        self.arrivals.ends.append(len(self.arrivals.data))

    def connection_lost(self, _error: Exception | None) -> None:
        self.ended.set_result(None)


async def ask_all(port: int, bodies: list[dict[str, Any]], ramp_seconds: float) -> list[Arrivals]:
    """Sends chat requests to the loopback, evenly spread over a time, and reads all answers."""

    async def ask(number: int, body: dict[str, Any]) -> Arrivals:
        await asyncio.sleep(ramp_seconds * number / len(bodies))
        data = json.dumps(body).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        transport, connection = await loop.create_connection(_Connection, "127.0.0.1", port)
        transport.write(head.encode() + data)
        await connection.ended
        return connection.arrivals

    return await asyncio.gather(*(ask(number, body) for number, body in enumerate(bodies)))


def main() -> int:
    """Reads port, ramp and bodies as JSON from the input; writes the arrivals to the file."""
    task = json.load(sys.stdin)
    answers = asyncio.run(ask_all(task["port"], task["bodies"], task["ramp_seconds"]))
    Path(task["output"]).write_text(json.dumps([answer.read_texts() for answer in answers]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
