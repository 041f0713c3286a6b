"""GET / and /page/...: the files of the page; others cannot be asked for."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

PREFIX = "/page/"

_HEADERS = {
    # Nothing from elsewhere, nothing inline, no eval, and no text that becomes markup.
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Browsers keep the files and ask whether they are still right.
    "cache-control": "no-cache",
}

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Of what browsers are sent; licences and notes stay unsent."""


class _PageFiles(StaticFiles):
    def file_response(self, full_path: Any, *args: Any) -> Response:
        content_type = CONTENT_TYPES.get(Path(full_path).suffix)
        if content_type is None:
            raise HTTPException(404)
        response = super().file_response(full_path, *args)
        response.headers.update({**_HEADERS, "content-type": content_type})
        return response


def page_router() -> APIRouter:
    """Returns the endpoints."""
    router = APIRouter()
    files = _PageFiles(directory=STATIC)

    @router.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        """Returns the page."""
        return await files.get_response(INDEX, request.scope)

    @router.get(PREFIX + "{path:path}", include_in_schema=False)
    async def page_file(request: Request, path: str) -> Response:
        """Returns a file of the page."""
        return await files.get_response(path, request.scope)

    return router
