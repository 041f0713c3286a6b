"""The bytes of a request's body: bounded in size and time, decompressed."""

import asyncio
import zlib
from functools import partial

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from optimist_gateway.api.openai.errors import UNSUPPORTED_CODING
from optimist_gateway.core.error import MAX_PARAM_CHARACTERS, ApiError, printable
from optimist_gateway.core.request import Limits
from optimist_gateway.security.beside import LONG, beside

_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""The codings that are read, as zlib names them."""


async def read_body(request: Request, limits: Limits) -> bytes:
    """Returns the body of a request, which says that it is JSON or does not say what it is.

    Raises ApiError if it says something else, is too long or too slow, or is broken off.
    """
    _require_json(request.headers)
    coding = _coding(request.headers)
    data = await _received(request, limits)
    if coding is None:
        return data
    # How long the text is turns out on the way.
    return await beside(partial(_decompressed, data, coding, limits.max_body_bytes), LONG)


def _require_json(headers: Headers) -> None:
    # A page from elsewhere may send texts, forms and what has no type to a server that asks for no
    # key, and the browser asks nobody; but it says so by the header Origin.
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    if given.endswith(("/json", "+json")) or not (given or "origin" in headers):
        return
    found = printable(given, MAX_PARAM_CHARACTERS) or "missing"
    reason = f"the header content-type is {found}: send JSON with content-type: application/json"
    raise ApiError(415, reason, code="unsupported_media_type")


def _coding(headers: Headers) -> str | None:
    """Returns what the body is compressed with, if it is; raises ApiError for what is not read."""
    # In HTTP/1.1 a transfer may be compressed too; chunks are taken apart by then.
    fields = headers.getlist("content-encoding") + headers.getlist("transfer-encoding")
    names = [name.strip().lower() for field in fields for name in field.split(",")]
    codings = [name for name in names if name not in ("", "identity", "chunked")]
    if not codings:
        return None
    if len(codings) == 1 and codings[0] in _WINDOW_BITS:
        return codings[0]
    shown = printable(", ".join(codings), MAX_PARAM_CHARACTERS)
    reason = f"bodies with content-encoding: {shown} are not read: send gzip, deflate or neither"
    raise ApiError(415, reason, code=UNSUPPORTED_CODING)


async def _received(request: Request, limits: Limits) -> bytes:
    if int(request.headers.get("content-length", 0)) > limits.max_body_bytes:
        raise _too_large()
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.read_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.max_body_bytes:
                    raise _too_large()
                parts.append(part)
    except TimeoutError:
        reason = "the request body did not arrive in time"
        raise ApiError(408, reason, code="request_timeout") from None
    except ClientDisconnect:
        raise ApiError(400, "the body was broken off", code="invalid_json") from None
    return b"".join(parts)


def _decompressed(data: bytes, coding: str, most: int) -> bytes:
    decoder = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        text = decoder.decompress(data, most + 1)
    except zlib.error:
        reason = f"the body is not {coding}, as content-encoding says, or is damaged"
        raise ApiError(400, reason, code="invalid_encoding") from None
    if len(text) > most:
        raise _too_large()
    if not decoder.eof or decoder.unused_data:
        fault = "goes on after its end" if decoder.eof else "is broken off"
        raise ApiError(400, f"the {coding} of the body {fault}", code="invalid_encoding")
    return text


def _too_large() -> ApiError:
    return ApiError(413, "the request body is too large", code="request_too_large")
