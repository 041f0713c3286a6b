"""Random requests, each field valid, at its bounds or wrong in one of many ways; edits beside."""

import asyncio
import json
import random
from typing import Any

import httpx

from optimist_training.data.edits import Edit
from tests.integration.edit import MODEL

CONCURRENCY = 6
JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    2**63,
    -(2**70),
    1e308,
    0.5,
    "",
    "x",
    "\ud800",
    "\x00",
    "ä" * 3000,
    [],
    [None],
    [[]],
    {},
    {"type": "text"},
    [1, "a", {}],
    {"a": {"b": [1]}},
]

_TEXTS = ["def f(a):\n    return a\n", "name", "\n", "日本語 🎉", "x = 1\n" * 20, "<|end|>", "{}"]
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "function": {"name": "rename", "description": "Renames.", "parameters": _SCHEMA},
}

COMMON: dict[str, list[Any]] = {
    "temperature": [0, 0.7, 2.0, 2.1, -0.1],
    "top_p": [0.0, 0.5, 1.0, 1.5],
    "top_k": [-1, 0, 1, 40, -2],
    "min_p": [0.0, 0.3, 1.0, 1.1],
    "seed": [0, -(2**63), 2**63 - 1, 2**63],
    "presence_penalty": [-2.0, 2.0, 3],
    "frequency_penalty": [-2.0, 1.5, -3],
    "repetition_penalty": [0.1, 1.3, 10.0, 0.0],
    "logit_bias": [{}, {"5": 100, "2047": -100.0}, {"2048": 1}, {"-1": 1}, {"5": 101}, {"a": 1}],
    "stop": ["\n", ["return", "end"], ["a"] * 4, ["a"] * 5, "", ["x" * 1025]],
    "stop_token_ids": [[], [5, 6], [2048], [-1]],
    "ignore_eos": [True, False],
    "min_tokens": [0, 3, 10_000],
    "max_tokens": [1, 12, 0, 10**9],
    "n": [1, 2, 3, 0, 17, 10**6],
    "stream_options": [{"include_usage": True}, {"include_obfuscation": False}, {"x": 1}],
    "priority": [0, -5, 2**31],
    "cache_salt": ["a", "b" * 256, "b" * 257],
    "return_token_ids": [True, False],
    "include_provenance": [True, False],
    "include_speculation": [True, False],
    "num_speculative_tokens": [0, 1, 64, -1],
    "predicted_token_ids": [[1, 2, 3], [[1], [2, 3]], [], [2048], [-1], [[1], 2]],
    "prediction": [
        *({"type": "content", "content": text} for text in _TEXTS),
        [{"type": "content", "content": text} for text in _TEXTS],
        {"type": "content", "content": [{"type": "text", "text": "def f("}]},
        {"type": "other", "content": "x"},
    ],
    "user": ["me"],
    "best_of": [1, 5],
}
CHAT: dict[str, list[Any]] = {
    "max_completion_tokens": [1, 16, 0],
    "logprobs": [True, False],
    "top_logprobs": [0, 5, 20, 21],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "person", "schema": _SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}},
        {"type": "json_schema"},
    ],
    "tools": [[_TOOL], [], [_TOOL, _TOOL], [{"type": "function"}]],
    "tool_choice": ["auto", "none", "required", {"type": "function", "function": {"name": "x"}}],
    "parallel_tool_calls": [True, False],
}
COMPLETIONS: dict[str, list[Any]] = {
    "logprobs": [0, 1, 5, 21, -1],
    "echo": [True, False],
    "suffix": ["x"],
}


def make_body(source: random.Random, *, chat: bool) -> dict[str, Any]:
    """Returns a body of few tokens, sometimes a wrong one."""
    fields = COMMON | (CHAT if chat else COMPLETIONS)
    body: dict[str, Any] = {"model": MODEL, "max_tokens": source.choice([2, 8, 24])}
    if chat:
        content = source.choice([*_TEXTS, [{"type": "text", "text": "x"}]])
        body["messages"] = [{"role": "user", "content": content}]
    else:
        prompts = [*_TEXTS, [1, 2, 3], ["a", "b"], [[1], [2, 3]], [], [2048], ""]
        body["prompt"] = source.choice(prompts)
    for name in source.sample(sorted(fields), source.randint(0, 6)):
        is_junk = source.random() < 0.15
        body[name] = source.choice(JUNK if is_junk else fields[name])
    if source.random() < 0.05:
        body[source.choice(["messages", "prompt", "model", "unknown"])] = source.choice(JUNK)
    body["stream"] = source.random() < 0.5
    return body


class Asker:
    """Asks one gateway, many requests at a time."""

    max_tokens = 48
    """Of an edit."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        """Asks over connections to the gateway."""
        self._http = http
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self.statuses: list[int] = []
        """Of random requests."""

    async def ask_random(self, body: dict[str, Any]) -> None:
        """Asks for anything; the answer is a complete one or an error in OpenAI's form."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        # JSON may hold halves of surrogate pairs, which httpx would not encode.
        content = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        async with self._slots:
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
