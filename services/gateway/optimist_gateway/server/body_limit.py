"""Bounds the bodies of requests, in size and in time."""

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware: reading a body that is too long fails with 413, too slow a one with 408.

    FastAPI's own limit answers in plain text when the length is known beforehand.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, read_seconds: float) -> None:
        self._app = app
        self._max_body_bytes, self._read_seconds = max_body_bytes, read_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        deadline = asyncio.get_running_loop().time() + self._read_seconds
        size = 0
        is_read = False

        async def limited() -> Message:
            nonlocal size, is_read
            if is_read:
                # What is waited for now is that the client goes away.
                return await receive()
            if _exceeds(announced, self._max_body_bytes):
                raise HTTPException(413)
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408) from None
            size += len(message.get("body", b""))
            if size > self._max_body_bytes:
                raise HTTPException(413)
            is_read = not message.get("more_body", False)
            return message

        await self._app(scope, limited, send)


def _exceeds(announced: str, limit: int) -> bool:
    """Tells whether a content-length is above a limit; int() refuses very long ones."""
    return announced.isdecimal() and (len(announced) > 18 or int(announced) > limit)
