"""Who is given the page, and how it is left out."""

import httpx
import pytest
from fastapi import FastAPI

from optimist_gateway.server.app import create_app
from optimist_gateway.server.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer


async def status(app: FastAPI, path: str) -> int:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        return (await client.get(path)).status_code


@pytest.mark.parametrize("path", ["/", "/page/js/main.js"])
async def test_the_page_needs_no_key(
    settings: GatewaySettings, tokenizer: Tokenizer, path: str
) -> None:
    locked = settings.model_copy(update={"api_keys": ["sk-client"]})
    assert await status(create_app(locked, tokenizer), path) == 200


@pytest.mark.parametrize("path", ["/", "/page/js/main.js"])
async def test_the_page_can_be_left_out(
    settings: GatewaySettings, tokenizer: Tokenizer, path: str
) -> None:
    without = settings.model_copy(update={"page": False})
    assert await status(create_app(without, tokenizer), path) == 404
