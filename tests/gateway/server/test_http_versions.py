"""Clients of HTTP/1.0, and those that offer another protocol or speak it at once."""

import asyncio
import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tests.gateway.harness import BODIES, COMPLETIONS, Gateway
from tests.gateway.server.raw import JSON, error_of, exchange, streamed

TEXT = "The quick brown fox"
CLOSE = b"connection: close"
H2C = [
    b"Connection: Upgrade, HTTP2-Settings",
    b"Upgrade: h2c",
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
]
WEBSOCKET = [
    b"Upgrade: websocket",
    b"Connection: Upgrade",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
]
# Kludex/uvicorn#2722, MagicStack/httptools#124, langchain4j/langchain4j#3682: OpenJDK's HttpClient
# sends the first of these with every request, as does `curl --http2`.
OFFERS = {"h2c": H2C, "websocket": WEBSOCKET, "none for this connection": [b"Upgrade: h2c"]}


def request(*headers: bytes, chunked: bool = False, **fields: Any) -> bytes:
    """A request for a whole completion."""
    body = json.dumps(BODIES[COMPLETIONS] | fields).encode()
    framing = b"content-length: %d" % len(body)
    if chunked:
        framing, half = b"transfer-encoding: chunked", len(body) // 2
        parts = (body[:half], body[half:], b"")
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return JSON + b"".join(header + b"\r\n" for header in (*headers, framing)) + b"\r\n" + body


def answers_of(data: bytes) -> list[Any]:
    """The bodies of whole answers one after the other, all of which succeeded."""
    bodies = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        headers = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
        assert b"upgrade" not in headers
        length = int(headers[b"content-length"])
        bodies.append(json.loads(data[:length]))
        data = data[length:]
    return bodies


def texts_of(data: bytes) -> list[str]:
    return [body["choices"][0]["text"] for body in answers_of(data)]


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
async def test_an_offered_protocol_is_ignored(gateway: Gateway, offer: list[bytes]) -> None:
    gateway.say(TEXT)
    one = request(*offer, chunked=offer is H2C)
    # Sent at once, and in parts that end anywhere.
    whole = one + one + request(CLOSE)
    assert texts_of(await exchange(gateway, whole)) == [TEXT] * 3
    for seed in range(4):
        places = Random(seed).sample(range(1, len(whole)), 8)
        parts = [whole[start:end] for start, end in pairwise([0, *sorted(places), len(whole)])]
        assert texts_of(await exchange(gateway, *parts, pause=0.005)) == [TEXT] * 3


async def test_who_offers_and_waits_with_the_body_is_asked_for_it(gateway: Gateway) -> None:
    gateway.say(TEXT)
    head, _, body = request(*H2C, b"expect: 100-continue").partition(b"\r\n\r\n")
    reader, writer = await gateway.connect()
    writer.write(head + b"\r\n\r\n")
    go_on = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert go_on == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body + request(CLOSE))
    assert texts_of(await asyncio.wait_for(reader.read(), 10)) == [TEXT] * 2
    writer.close()


async def test_limits_hold_for_who_offers(gateway: Gateway) -> None:
    many = [b"x-%d: 1" % number for number in range(200)]
    error = error_of(await exchange(gateway, request(*H2C, *many)), 431)
    assert error["code"] == "headers_too_large"
    long = request(*H2C, CLOSE, prompt="a" * 300_000)
    assert error_of(await exchange(gateway, long), 413)["code"] == "request_too_large"


async def test_who_speaks_http_2_at_once_gets_an_error(gateway: Gateway) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = b"\0\0\0\x04\0\0\0\0\0"
    for parts in ([preface + settings], [preface[:20], preface[20:], settings]):
        error = error_of(await exchange(gateway, *parts, pause=0.005), 505)
        assert error["code"] == "http_version_not_supported"
        assert "HTTP/1.1" in error["message"]


async def test_the_gateway_is_no_proxy(gateway: Gateway) -> None:
    connect = b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n"
    assert error_of(await exchange(gateway, connect + request()), 501)["code"] == "not_implemented"


# Kludex/uvicorn#1360
@pytest.mark.parametrize("headers", [[], [b"connection: keep-alive"]])
async def test_a_stream_to_a_client_of_http_1_0_ends_with_the_connection(
    gateway: Gateway, headers: list[bytes]
) -> None:
    gateway.say(TEXT)
    asked = streamed(*headers).replace(b"HTTP/1.1", b"HTTP/1.0")
    answer = await exchange(gateway, asked)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    *events, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
