"""Names every request: by the client's own name if it is a sane one."""

import uuid
from string import ascii_letters, digits

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_CHARACTERS = 128
_ALLOWED = frozenset((ascii_letters + digits + "-_.:/+=@").encode())
_HEADER = b"x-request-id"


class RequestId:
    """ASGI middleware: every answer carries `x-request-id`, errors too.

    A name that a client sends comes back; else it is the name that the endpoint gave, or a new one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = sane_request_id(scope)
        request_id = given or f"req-{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ())]
                if given or not any(name == _HEADER for name, _ in headers):
                    headers = [header for header in headers if header[0] != _HEADER]
                    headers.append((_HEADER, request_id.encode("ascii")))
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, named)


def sane_request_id(scope: Scope) -> str | None:
    """Returns the client's name of a request, if it sent one that headers and logs can bear."""
    values = [value for name, value in scope["headers"] if name == _HEADER]
    if len(values) != 1 or not 0 < len(values[0]) <= MAX_CHARACTERS:
        return None
    value: bytes = values[0]
    return value.decode("ascii") if _ALLOWED.issuperset(value) else None
