"""Random requests for every way of drafting: none ends a process, or changes a neighbour's text."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.integration.edit import MODEL, edits
from tests.integration.request_bodies import make_body
from tests.stack import Stack

NUM_REQUESTS = 60
CONCURRENCY = 6

DRAFTERS = {
    "none": (),
    "ngram": ("--drafter", "ngram"),
    "draft_model": ("--drafter", "draft_model"),
    "quantised": ("--drafter", "quantised"),
    "medusa": ("--drafter", "medusa"),
    "eagle": ("--drafter", "eagle"),
}


class Asker:
    """Asks one stack, many requests at a time."""

    def __init__(self, stack: Stack, http: httpx.AsyncClient) -> None:
        self._url, self._http = stack.url, http
        self._places = asyncio.Semaphore(CONCURRENCY)
        self.statuses: list[int] = []

    async def ask_random(self, body: dict[str, Any]) -> None:
        """Asks for anything; the answer is a complete one or an error as OpenAI words it."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        # JSON may hold halves of surrogate pairs, which httpx would not encode.
        content = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        async with self._places:
            response = await self._http.post(self._url + path, content=content, headers=headers)
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

    async def ask_edit(self, number: int, *, with_prediction: bool) -> list[int]:
        """Returns the tokens of an edit that others run beside."""
        edit = _EDITS[number % len(_EDITS)]
        body = {
            "model": MODEL,
            "messages": edit.messages(),
            "temperature": 0,
            "max_tokens": 48,
            "return_token_ids": True,
        }
        if with_prediction:
            body["prediction"] = {"type": "content", "content": edit.before}
        response = await self._http.post(f"{self._url}/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        tokens: list[int] = response.json()["choices"][0]["token_ids"]
        return tokens


_EDITS = edits(3, seed=21)


@asynccontextmanager
async def _asking(*options: str) -> AsyncIterator[tuple[Stack, Asker]]:
    stack = Stack("--dtype", "float64", *options)
    try:
        async with httpx.AsyncClient(timeout=120) as http:
            yield stack, Asker(stack, http)
    finally:
        assert stack.stop() == 0, stack.output


@pytest.mark.parametrize("name", DRAFTERS)
async def test_no_request_harms_another(name: str) -> None:
    source = random.Random(f"matrix {name}")
    async with _asking(*DRAFTERS[name]) as (stack, asker):
        names = ("proposer", "worker", "scheduler", "gateway")
        pids = [stack.service_pid(service) for service in names]
        alone = [await asker.ask_edit(n, with_prediction=False) for n in range(len(_EDITS))]
        bodies = [make_body(source, chat=bool(number % 2)) for number in range(NUM_REQUESTS)]
        others = asyncio.gather(*(asker.ask_random(body) for body in bodies))
        number = 0
        while not others.done() or number < 2 * len(_EDITS):
            tokens = await asker.ask_edit(number, with_prediction=bool(number % 2))
            assert tokens == alone[number % len(_EDITS)]
            number += 1
        await others
        assert [stack.service_pid(service) for service in names] == pids
    assert asker.statuses.count(200) >= NUM_REQUESTS // 10
    assert asker.statuses.count(400) > NUM_REQUESTS // 5
