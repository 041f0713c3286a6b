"""Bounds the bodies of requests."""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware: reading a body that is longer than the limit fails with status 413.

    FastAPI's own limit answers in plain text when the length is known beforehand.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        size = 0

        async def limited() -> Message:
            nonlocal size
            if announced.isdecimal() and int(announced) > self._max_body_bytes:
                raise HTTPException(413)
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_body_bytes:
                raise HTTPException(413)
            return message

        await self._app(scope, limited, send)
