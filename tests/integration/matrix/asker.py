"""Asks a gateway for anything, and for edits beside."""

import asyncio
import json
from typing import Any

import httpx

from optimist_training.data.edits import Edit
from tests.integration.edit import MODEL

CONCURRENCY = 6


class Asker:
    """Asks one gateway, many requests at a time."""

    max_tokens = 48
    """Of an edit."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        """Asks over connections to the gateway."""
        self._http = http
        self._places = asyncio.Semaphore(CONCURRENCY)
        self.statuses: list[int] = []
        """Of random requests."""

    async def ask_random(self, body: dict[str, Any]) -> None:
        """Asks for anything; the answer is a complete one or an error as OpenAI words it."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        # JSON may hold halves of surrogate pairs, which httpx would not encode.
        content = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        async with self._places:
            response = await self._http.post(path, content=content, headers=headers)
        text, status = response.text, response.status_code
        self.statuses.append(status)
        assert status == 200 or 400 <= status < 500, (body, status, text)
        if status != 200:
            error = response.json()["error"]
            assert error.keys() == {"message", "type", "param", "code"}
            assert error["message"]
            assert len(text) < 4096
        elif body.get("stream"):
            assert text.endswith("data: [DONE]\n\n"), (body, text[-1000:])
        else:
            assert all(choice["finish_reason"] for choice in response.json()["choices"]), body

    async def ask_edit(self, edit: Edit, *, with_prediction: bool) -> list[int]:
        """Returns the first tokens of an edit."""
        body = {
            "model": MODEL,
            "messages": edit.messages(),
            "temperature": 0,
            "max_tokens": self.max_tokens,
            "return_token_ids": True,
        }
        if with_prediction:
            body["prediction"] = {"type": "content", "content": edit.before}
        response = await self._http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        tokens: list[int] = response.json()["choices"][0]["token_ids"]
        return tokens
