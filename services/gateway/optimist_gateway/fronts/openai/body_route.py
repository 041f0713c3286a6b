"""How the body of a request is read: bounded, parsed, and checked, without making others wait."""

import json
from collections.abc import Callable, Coroutine
from email.message import Message
from functools import partial
from typing import Any, TypeVar, get_type_hints

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from optimist_gateway.core.error import ApiError
from optimist_gateway.core.json_weight import HEAVY, MAX_WEIGHT, is_heavier
from optimist_gateway.fronts.openai.errors import validation_error
from optimist_gateway.generation.generation import Admission
from optimist_gateway.security.beside import INLINE, beside

B = TypeVar("B", bound=BaseModel)


def body_route(admission: Admission | None = None) -> type[APIRoute]:
    """Returns the class of routes whose endpoints take a `body`; they answer with responses.

    With an admission, a request asks for room first: to read, parse and check a body takes longer
    than all else that a refusal needs, and an overloaded gateway would do it for most requests in
    vain. Whoever needs more than one is refused later, when that is known.
    """

    class BodyRoute(APIRoute):
        """Reads bodies; FastAPI, which would parse and check all of one at once, documents them."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """Returns what answers a request of a client that is known."""
            endpoint = self.endpoint
            hints = get_type_hints(endpoint)
            kind = hints["body"]

            async def answer(request: Request) -> Response:
                if admission is not None:
                    admission.require_room()
                body = await _read(request, kind)
                given = {"request": request} if "request" in hints else {}
                response: Response = await endpoint(body=body, **given)
                return response

            return answer

    return BodyRoute


async def _read(request: Request, kind: type[B]) -> B:
    """Returns the body of a request; raises ApiError if there is something wrong with it."""
    try:
        data = await request.body()
    except ClientDisconnect:
        raise ApiError(400, "the body was broken off", code="invalid_json") from None
    if data and not _is_json(request.headers.get("content-type", "")):
        message = "send JSON with the header content-type: application/json"
        raise ApiError(415, message, code="unsupported_media_type")
    return await beside(partial(_checked, data, kind), len(data))


def _is_json(content_type: str) -> bool:
    message = Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    is_application = message.get_content_maintype() == "application"
    return is_application and (subtype == "json" or subtype.endswith("+json"))


def _checked(data: bytes, kind: type[B]) -> B:
    value = _parsed(data)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise validation_error(error, value) from None


def _parsed(data: bytes) -> Any:
    if len(data) > INLINE and is_heavier(data, MAX_WEIGHT):
        raise too_many_values("body")
    try:
        return json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        reason = f"at character {error.pos}"
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 at byte {error.start}"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError:
        reason = "a number has too many digits"
    raise ApiError(400, f"the body is not JSON ({reason})", code="invalid_json")


def too_many_values(what: str) -> ApiError:
    """Returns the error of what is heavier than it may be."""
    message = (
        f"the {what} has more than {MAX_WEIGHT} values, "
        f"of which texts, names of fields, lists and objects count {HEAVY} times"
    )
    return ApiError(400, message, code="too_many_values")
