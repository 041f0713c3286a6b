"""The page's files are served with their types, and nothing else is."""

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from optimist_gateway.api.page.router import CONTENT_TYPES, STATIC, page_router


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(page_router())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
        yield client


async def test_every_file_of_the_page_is_served_with_its_type_and_strict_headers(
    client: httpx.AsyncClient,
) -> None:
    types = {"/": "text/html", "/page/js/main.js": "text/javascript"}
    types |= {"/page/css/theme.css": "text/css", "/page/icon.svg": "image/svg+xml"}
    for path in STATIC.rglob("*"):
        name = f"/page/{path.relative_to(STATIC).as_posix()}"
        answer = await client.get(name)
        if path.suffix not in CONTENT_TYPES:
            assert answer.status_code == 404
            continue
        assert answer.content == path.read_bytes()
        types.setdefault(name, "")
    for name, content_type in types.items():
        answer = await client.get(name)
        assert answer.headers["content-type"].startswith(content_type)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "unsafe" not in policy


async def test_what_a_browser_has_is_not_sent_again(client: httpx.AsyncClient) -> None:
    etag = (await client.get("/", headers={"if-none-match": '"other"'})).headers["etag"]
    for tag in ("{}", "W/{}", '"other", {}', "*"):
        answer = await client.get("/", headers={"if-none-match": tag.format(etag)})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == etag
        assert "content-security-policy" in answer.headers


async def test_nothing_else_is_served(client: httpx.AsyncClient) -> None:
    for path in (
        "/page/",
        "/page/none.js",
        "/page/%2e%2e/router.py",
        "/page/..%2frouter.py",
        "/page//etc/passwd",
        "/page/vendor/LICENSE.htm",
    ):
        assert (await client.get(path)).status_code == 404, path


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    index = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|javascript:", index) == []
    own = [path for path in STATIC.rglob("*") if path.suffix in {".js", ".css", ".html"}]
    for path in own:
        if path.parent.name != "vendor":
            text = path.read_text(encoding="utf-8")
            assert re.findall(r"https?://|innerHTML|\beval\b|new Function", text) == [], path
