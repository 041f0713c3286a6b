"""Bodies as clients send them: compressed, in other encodings of text, of other types."""

import asyncio
import gzip
import json
import tracemalloc
import zlib
from typing import Any

import httpx
import pytest

from tests.gateway.harness import BODIES, CHAT, Gateway, Start, error_of

TEXT = "The quick brown fox"
BODY = json.dumps(BODIES[CHAT] | {"messages": [{"role": "user", "content": "Köln"}]}).encode()
TYPE = {"content-type": "application/json"}
MAX_BODY = 200_000
"""Of the shared gateway."""


async def post(gateway: Gateway, body: bytes, path: str = CHAT, **headers: str) -> httpx.Response:
    given = TYPE | {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.http.post(path, content=body, headers=given)


PACKED = gzip.compress(BODY)


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "x" * 500])
async def test_other_codings_are_named(gateway: Gateway, coding: str) -> None:
    for body in (BODY, b""):
        response = await post(gateway, body, content_encoding=coding)
        error = error_of(response, 415)
        assert error["code"] == "unsupported_content_encoding"
        assert coding[:90] in error["message"]
        assert response.headers["accept-encoding"] == "gzip, deflate"


DAMAGED = {
    "nothing": b"",
    "half of it": PACKED[:-20],
    "a wrong sum": PACKED[:-8] + b"\0" * 8,
    "something after it": PACKED + b"more",
}


@pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED)
async def test_broken_gzip_is_called_so(gateway: Gateway, body: bytes) -> None:
    error = error_of(await post(gateway, body, content_encoding="gzip"), 400)
    assert error["code"] == "invalid_encoding"
    assert "gzip" in error["message"]


def bomb(num_bytes: int) -> bytes:
    """JSON of so many bytes, compressed to a thousandth."""
    packer = zlib.compressobj(9, wbits=31)
    start = BODY[:-1] + b', "user": "'
    parts = [packer.compress(start)]
    parts += [packer.compress(b"a" * 2**20) for _ in range(num_bytes // 2**20)]
    return b"".join([*parts, packer.compress(b'"}'), packer.flush()])


async def test_what_counts_is_the_length_of_the_text(gateway: Gateway) -> None:
    gateway.say(TEXT)
    start, end = BODY[:-1] + b', "user": "', b'"}'
    fits = start + b"a" * (MAX_BODY - len(start + end)) + end
    response = await post(gateway, gzip.compress(fits), content_encoding="gzip")
    assert response.status_code == 200, response.text
    error = error_of(await post(gateway, gzip.compress(fits + b" "), content_encoding="gzip"), 413)
    assert error["code"] == "request_too_large"


async def test_a_bomb_takes_neither_memory_nor_time_of_others(start: Start) -> None:
    most = 2**20
    data = bomb(40 * 2**20)
    assert len(data) < most
    async with start(max_body_bytes=most) as gateway:
        gateway.say(TEXT)
        tracemalloc.start()
        try:
            sent = [post(gateway, data, content_encoding="gzip") for _ in range(2)]
            responses = await asyncio.gather(*sent)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        for response in responses:
            assert error_of(response, 413)["code"] == "request_too_large"
        assert peak < 32 * most
        assert (await post(gateway, BODY)).status_code == 200


TEXTS = {
    "a mark at its begin": ("utf-8-sig", None),
    "Latin-1": ("latin-1", "0xf6 at position"),
    "UTF-16": ("utf-16", "UTF-16"),
    "UTF-32": ("utf-32", "UTF-32"),
}


@pytest.mark.parametrize(("encoding", "part"), TEXTS.values(), ids=TEXTS)
async def test_texts_that_are_not_utf_8_are_called_so(
    gateway: Gateway, encoding: str, part: str | None
) -> None:
    gateway.say(TEXT)
    text = json.dumps(json.loads(BODY), ensure_ascii=False)
    response = await post(gateway, text.encode(encoding))
    if part is None:
        assert response.status_code == 200, response.text
        return
    error = error_of(response, 400)
    assert error["code"] == "invalid_json"
    assert part in error["message"]
    assert "UTF-8" in error["message"]


OTHER_TYPES = ["text/plain;charset=UTF-8", "multipart/form-data; boundary=json", "x" * 300]


def typed(kind: str | None, **headers: str) -> dict[str, str]:
    return ({} if kind is None else {"content-type": kind}) | headers


@pytest.mark.parametrize("kind", OTHER_TYPES)
async def test_other_types_are_named(gateway: Gateway, kind: str) -> None:
    response = await gateway.http.post(CHAT, content=BODY, headers=typed(kind))
    error = error_of(response, 415)
    assert error["code"] == "unsupported_media_type"
    assert kind.partition(";")[0][:90] in error["message"]
    assert "application/json" in error["message"]


@pytest.mark.parametrize("kind", [None, "", *OTHER_TYPES])
async def test_a_page_from_elsewhere_cannot_ask_unasked(gateway: Gateway, kind: Any) -> None:
    # What browsers send without having asked whether they may; then they would with this type.
    headers = typed(kind, origin="https://elsewhere.example")
    response = await gateway.http.post(CHAT, content=BODY, headers=headers)
    assert error_of(response, 415)["code"] == "unsupported_media_type"
    assert not gateway.adds
