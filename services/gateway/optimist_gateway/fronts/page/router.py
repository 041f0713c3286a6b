"""GET / and /page/...: the page and its files."""

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from optimist_gateway.fronts.page.files import INDEX, PageFile, load_page_files

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


def page_router() -> APIRouter:
    """Returns the endpoints."""
    router = APIRouter()
    files = load_page_files()

    @router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        """Returns the page."""
        return _answer(request, files[INDEX])

    @router.api_route(PREFIX + "{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page_file(request: Request, path: str) -> Response:
        """Returns a file of the page."""
        file = files.get(path)
        if file is None:
            raise HTTPException(404)
        return _answer(request, file)

    return router


def _answer(request: Request, file: PageFile) -> Response:
    headers = {**_HEADERS, "etag": file.etag}
    if _is_known(request.headers.get("if-none-match", ""), file.etag):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, "content-type": file.content_type})


def _is_known(if_none_match: str, etag: str) -> bool:
    """Tells whether a browser has this content; proxies may have made its tag a weak one."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or tags == ["*"]
