"""GET / and /page/...: the files of the page; others cannot be asked for."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

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

_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """One file as it is sent."""

    content: bytes
    content_type: str
    etag: str
    """Changes with the content; quoted, as in the header."""


def load_page_files() -> dict[str, PageFile]:
    """Returns what browsers are sent, by path below the folder; licences and notes stay unsent."""
    files = {}
    for path in sorted(STATIC.rglob("*")):
        if path.suffix in _CONTENT_TYPES:
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            name = path.relative_to(STATIC).as_posix()
            files[name] = PageFile(content, _CONTENT_TYPES[path.suffix], etag)
    return files


def page_router() -> APIRouter:
    """Returns the endpoints."""
    router = APIRouter()
    files = load_page_files()

    @router.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        """Returns the page."""
        return _answer(request, files[INDEX])

    @router.get(PREFIX + "{path:path}", include_in_schema=False)
    async def page_file(request: Request, path: str) -> Response:
        """Returns a file of the page."""
        file = files.get(path)
        if file is None:
            raise HTTPException(404)
        return _answer(request, file)

    return router


def _answer(request: Request, file: PageFile) -> Response:
    headers = {**_HEADERS, "etag": file.etag}
    # Proxies may have made the tag of what a browser has a weak one.
    given = request.headers.get("if-none-match", "").split(",")
    tags = [tag.strip().removeprefix("W/") for tag in given]
    if file.etag in tags or tags == ["*"]:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, "content-type": file.content_type})
