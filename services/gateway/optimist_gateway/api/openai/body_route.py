"""How bodies of requests are read, parsed and checked: in bounds, while others are answered."""

import asyncio
import json
import logging
import re
import zlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar, get_type_hints

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from optimist_gateway.api.openai.bodies.base import Body
from optimist_gateway.api.openai.errors import UNSUPPORTED_CODING, validation_error
from optimist_gateway.core.error import MAX_PARAM_CHARACTERS, ApiError, Path, printable
from optimist_gateway.core.json_text import HEAVY, MAX_WEIGHT, is_heavier, parse_json
from optimist_gateway.core.request import Limits
from optimist_gateway.generation.generation import Service
from optimist_gateway.security.beside import INLINE, LONG, beside
from optimist_gateway.security.keys import current_client

logger = logging.getLogger(__name__)

B = TypeVar("B", bound=Body)
MAX_NAMED = 16
"""Ignored fields of one request that are named."""
_MAX_LOGGED = 1024
_logged: set[tuple[str, str]] = set()
"""Paths and ignored fields that the log has."""


def body_route(service: Service, *, admits: bool = True) -> type[APIRoute]:
    """Returns the class of routes whose endpoints take a `body`; they answer with responses.

    Where it `admits`, a request asks for room first: to read and check a body takes longer than all
    else that a refusal needs. Whoever needs more than one is refused later, when that is known.
    """

    class BodyRoute(APIRoute):
        """Reads bodies; FastAPI, which would parse and check all of one at once, documents them."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """Returns what answers a request of a client that is known."""
            endpoint = self.endpoint
            hints = get_type_hints(endpoint)
            kind = hints["body"]

            async def answer(request: Request) -> Response:
                if admits:
                    service.admission.require_room(current_client.get().name)
                data = await read_body(request, service.limits)
                body, unknown = await beside(partial(_checked, data, kind), len(data))
                given = {"request": request} if "request" in hints else {}
                response: Response = await endpoint(body=body, **given)
                if unknown:
                    response.headers["x-ignored-fields"] = note_ignored(request.url.path, unknown)
                return response

            return answer

    return BodyRoute


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


def _checked(data: bytes, kind: type[B]) -> tuple[B, list[Path]]:
    """Returns the body of a request, and where it had fields that are not known.

    Raises ApiError if there is something wrong with it.
    """
    value = _parsed(data)
    try:
        body = kind.model_validate(value)
        return body, body.take_unknown()
    except ValidationError as error:
        raise validation_error(error, value) from None


def _parsed(data: bytes) -> Any:
    if len(data) > INLINE and is_heavier(data, MAX_WEIGHT):
        raise too_many_values("body")
    encoding = json.detect_encoding(data)
    if not encoding.startswith("utf-8"):
        raise _no_json(f"it is {encoding.upper()}: send UTF-8")
    try:
        return parse_json(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise _no_json(f"at character {error.pos}" if data else "it is empty") from None
    except UnicodeDecodeError as error:
        fault = f"byte {data[error.start]:#04x} at position {error.start} is not UTF-8"
        raise _no_json(fault) from None
    except RecursionError:
        raise _no_json("it is nested too deeply") from None
    except ValueError:
        raise _no_json("a number has too many digits") from None


def _no_json(reason: str) -> ApiError:
    return ApiError(400, f"the body is not JSON ({reason})", code="invalid_json")


def note_ignored(endpoint: str, fields: Sequence[Path]) -> str:
    """Logs fields that are ignored, each once; returns them as the value of a header.

    Indices are left out: `messages[].cache_control` is one field in all messages.
    """
    parts = (
        "".join("[]" if isinstance(one, int) else f".{one}" for one in path) for path in fields
    )
    # A header has no other characters.
    shown = (re.sub(r"[^!-~]", "?", printable(name.removeprefix("."), 100)) for name in parts)
    names = list(dict.fromkeys(shown))
    for name in names:
        if (endpoint, name) not in _logged and len(_logged) < _MAX_LOGGED:
            _logged.add((endpoint, name))
            logger.warning("%s: the field %s is not known and is ignored", endpoint, name)
    return ", ".join([*names[:MAX_NAMED], *(["..."] if len(names) > MAX_NAMED else [])])


def too_many_values(what: str) -> ApiError:
    """Returns the error of what is heavier than it may be."""
    message = (
        f"the {what} has more than {MAX_WEIGHT} values, "
        f"of which texts, names of fields, lists and objects count {HEAVY} times"
    )
    return ApiError(400, message, code="too_many_values")
