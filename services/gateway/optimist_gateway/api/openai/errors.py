"""Errors in the shape of OpenAI's API."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from optimist_gateway.api.openai.bodies.base import UNSUPPORTED
from optimist_gateway.core.error import (
    FAILED,
    RETRY_SECONDS,
    SHUTTING_DOWN,
    ApiError,
    field_name,
    printable,
)
from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.observing.request_record import current_record

# Of a body with more errors the first ones are looked at.
MAX_ERRORS = 64
# The rest of the body may still come, or another server is to be asked.
_CLOSING_CODES = (SHUTTING_DOWN, "request_timeout")

_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error", 504: "server_error"}
UNSUPPORTED_CODING = "unsupported_content_encoding"


def error_body(error: ApiError) -> dict[str, Any]:
    """Returns the JSON body of an error."""
    return {
        "error": {
            "message": error.message,
            "type": _TYPES.get(error.status, "invalid_request_error"),
            "param": error.param,
            "code": error.code,
        }
    }


def error_response(
    error: ApiError,
    request_headers: Mapping[str, str],
    metrics: GatewayMetrics,
    endpoint: str = "none",
) -> Response:
    """Returns the HTTP response to a request with these headers, whose body may not be read.

    The error is counted. An overloaded or unreachable server says when to come back.
    """
    metrics.requests.labels(endpoint, str(error.status)).inc()
    current_record().error = reason = error.code or str(error.status)
    metrics.count_refusal(error.status, reason)
    headers = {}
    if error.status in (429, 503):
        seconds = RETRY_SECONDS if error.retry_seconds is None else error.retry_seconds
        headers["retry-after"] = str(ceil(seconds))
        headers["retry-after-ms"] = str(ceil(1000 * seconds))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.code == UNSUPPORTED_CODING:
        headers["accept-encoding"] = "gzip, deflate"
    # With `expect`, whether the client sends its body now is not known.
    if error.code in _CLOSING_CODES or "expect" in request_headers:
        headers["connection"] = "close"
    return Response(
        orjson.dumps(error_body(error)), error.status, headers, media_type="application/json"
    )


def _is_served(app: FastAPI, request: Request, path: str) -> bool:
    scope = {**request.scope, "path": path}
    return any(route.matches(scope)[0] is not Match.NONE for route in app.routes)


def add_error_handlers(app: FastAPI, metrics: GatewayMetrics) -> None:
    """Gives every error of the app the API's shape, and counts it."""

    def answer(request: Request, error: ApiError) -> Response:
        endpoint = getattr(request.scope.get("route"), "path", "none")
        response = error_response(error, request.headers, metrics, endpoint)
        if request_id := request.scope.get("state", {}).get("request_id"):
            response.headers["x-request-id"] = request_id
        return response

    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> Response:
        return answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> Response:
        # Only parameters of queries are left to FastAPI.
        return answer(request, _first_error(error.errors(), {}))

    @app.exception_handler(404)
    async def on_unknown_path(request: Request, _error: HTTPException) -> Response:
        path = request.url.path
        # Base URLs have /v1 once too often, or not at all.
        likely = {f"/v1{path}", path.removeprefix("/v1")} - {path}
        known = (one for one in likely if _is_served(app, request, one))
        hint = "".join(f"did you mean {one}?" for one in known) or "see /docs"
        message = f"no such endpoint: {request.method} {path} ({hint})"
        return answer(request, ApiError(404, message, code="unknown_url"))

    @app.exception_handler(405)
    async def on_wrong_method(request: Request, error: HTTPException) -> Response:
        allowed = (error.headers or {})["Allow"].replace("GET", "GET, HEAD")
        message = f"{request.url.path} takes {allowed}, not {request.method}"
        response = answer(request, ApiError(405, message, code="method_not_allowed"))
        response.headers["allow"] = allowed
        return response

    @app.exception_handler(Exception)
    async def on_bug(request: Request, _error: Exception) -> Response:
        return answer(request, ApiError(500, FAILED, code="internal"))


def validation_error(error: ValidationError, body: Any) -> ApiError:
    """Returns the first error of a body, or the most precise one about the same field."""
    errors = error.errors(include_url=False, include_input=False)
    return _first_error([one | {"loc": ("body", *one["loc"])} for one in errors], body)


def _first_error(errors: Sequence[Any], body: Any) -> ApiError:
    located = [(_location(one, body), one) for one in errors[:MAX_ERRORS]]
    field = located[0][0][:1]
    location, first = max(
        ((location, one) for location, one in located if location[:1] == field),
        key=lambda pair: len(pair[0]),
    )
    context: Mapping[str, Any] = first.get("ctx") or {}
    param = str(context["param"]) if "param" in context else field_name(location)
    if not location and "param" not in context:
        return ApiError(400, "the body must be a JSON object", code="invalid_type")
    code = first["type"] if "param" in context else _code(first["type"])
    text = first["msg"].removeprefix("Value error, ")
    message = text if "param" in context else f"{printable(param, 100)}: {text}"
    return ApiError(400, message, param=param, code=code)


def _code(pydantic_type: str) -> str:
    if pydantic_type == "missing":
        return "missing_required_parameter"
    if pydantic_type == UNSUPPORTED:
        return UNSUPPORTED
    return "invalid_type" if pydantic_type.endswith("_type") else "invalid_value"


def _location(error: Mapping[str, Any], body: Any) -> tuple[str | int, ...]:
    """Returns the path of a wrong field, without pydantic's names of union members."""
    parts = error["loc"][1:]
    if error["loc"][0] == "query":
        return tuple(parts)
    location: list[str | int] = []
    value = body
    for index, part in enumerate(parts):
        if _has(value, part):
            value = value[part]
        elif error["type"] != "missing" or index < len(parts) - 1:
            continue
        location.append(part)
    return tuple(location)


def _has(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value
