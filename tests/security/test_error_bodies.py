"""Whatever is sent, what comes back as an error is short, and tells nothing of the inside."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from optimist_gateway.server.app import create_app
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.harness import CHAT, COMPLETIONS, RESPONSES, USER, Start

MAX_BYTES = 4096
HOME = str(Path.home())
PATHS = [CHAT, COMPLETIONS, RESPONSES, "/tokenize", "/detokenize"]


def check(response: httpx.Response) -> None:
    """An error in the API's shape, or an answer."""
    if response.status_code < 400:
        return
    size = len(response.content) + sum(len(k) + len(v) for k, v in response.headers.raw)
    assert size < MAX_BYTES, response.content[:500]
    assert len(response.content) < 1000, response.content
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.status_code != 500, error
    for secret in ("Traceback", "site-packages", "optimist_gateway", " object at 0x", HOME):
        assert secret not in response.text


LONG = "x" * 100_000
DEEP = json.loads("[" * 600 + "]" * 600)


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": fields}


def schema(**keywords: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": keywords}}
    return {"response_format": form}


# Each is shorter than the longest body.
MANY: list[Any] = [
    {LONG: 1},
    {"\ud800": 1},
    {f"unknown_{number}": number for number in range(4_000)},
    {"messages": [{"role": LONG, "content": 1}] * 30},
    {"messages": [{LONG: LONG}] * 4},
    {"messages": [{}] * 4_000},
    {"messages": [{"role": "user", "content": 1}] * 2_000},
    {"messages": [{"role": "user", "content": [{"type": LONG}] * 30}]},
    {"prompt": [[LONG]]},
    {"prompt": [["a"]] * 4_000},
    {"model": LONG},
    {"stop": [LONG] * 4},
    {"stop": ["a"] * 4_000},
    {"logit_bias": {LONG: 1}},
    {"logit_bias": {str(number): 1000 for number in range(4_000)}},
    {"tools": [LONG]},
    {"tools": [function(name=LONG)]},
    {"tools": [function(name=f"f{n}", parameters={"type": LONG}) for n in range(30)]},
    {"tools": [function(name="f", parameters={"enum": DEEP})]},
    {"tool_choice": LONG},
    {"response_format": {"type": LONG}},
    schema(type=LONG),
    schema(pattern=LONG),
    {"prediction": {"type": LONG, "content": LONG}},
    {"prediction": {"type": "content", LONG: 1}},
    {"prediction": [{"type": "content", "content": LONG}] * 3},
    {"prediction": [{"type": LONG}] * 20},
    {"predicted_token_ids": ["a"] * 30_000},
    {"predicted_token_ids": [["a"] * 9_000] * 3},
    {"stream_options": {LONG: True}},
    {"metadata": {LONG: LONG}},
    {"user": LONG},
    *({name: DEEP} for name in ("stop", "predicted_token_ids", "logit_bias", "metadata", "input")),
    {"messages": DEEP, "prompt": DEEP},
    {"input": LONG},
    {"input": [{"type": LONG}] * 30},
    {"tokens": [-1] * 20_000},
    {"tokens": LONG},
    [],
    LONG,
    None,
    [[[[]]]] * 1000,
]


HARDLY_JSON = [
    b"",
    b"{",
    b"\xff" * 100_000,
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b'{"model": "tiny", "temperature": NaN}',
    b'{"model": "tiny", "prompt": "a", "temperature": Infinity}',
    b'{"model": "tiny", "prompt": "a", "seed": ' + b"9" * 100_000 + b"}",
    b'{"model": "tiny", "prompt": "a", "temperature": 1e999}',
    b'{"model": "tiny", "prompt": "\\ud800"}',
    b'{"model": "\\u0000", "prompt": "\\u0000"}',
]


async def test_long_and_many_errors_are_reported_shortly(start: Start) -> None:
    async with start(max_body_bytes=2**22) as gateway:
        http = gateway.http
        for path in PATHS:
            valid: dict[str, Any] = {"model": "tiny"}
            valid |= {"messages": USER} if "chat" in path else {}
            valid |= {"prompt": "a"} if path in ("/v1/completions", "/tokenize") else {}
            bodies = [*MANY, *(valid | wrong for wrong in MANY if isinstance(wrong, dict))]
            # In ASCII, so that halves of surrogate pairs can be sent.
            for content in [*(json.dumps(body).encode() for body in bodies), *HARDLY_JSON]:
                headers = {"content-type": "application/json"}
                check(await http.post(path, content=content, headers=headers))
            for kind in ("text/plain", "x" * 2000):
                check(await http.post(path, content=b"{", headers={"content-type": kind}))
        for path in (f"/{LONG}", f"/v1/models/{LONG}", f"/v1/models/x?{LONG}", "/%ff%00"):
            for method in ("GET", "POST", "PUT"):
                check(await http.request(method, path[:60_000]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=50),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=20), inner, max_size=5)
    ),
    max_leaves=20,
)
FIELDS = [
    *("messages", "prompt", "stop", "temperature", "top_p", "n", "logit_bias", "tools", "seed"),
    *("response_format", "prediction", "predicted_token_ids", "max_tokens", "stream_options"),
    *("logprobs", "top_logprobs", "tool_choice", "input", "tokens", "metadata", "stop_token_ids"),
]


APPS: list[FastAPI] = []


@given(st.sampled_from(PATHS), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_no_value_of_a_field_breaks_the_gateway(
    model_directory: Path, tokenizer: Tokenizer, path: str, fields: dict[str, Any]
) -> None:
    if not APPS:
        # Without a scheduler: what is right is answered 503.
        options = GatewaySettings(model=str(model_directory), schedulers=["127.0.0.1:1"])
        APPS.append(create_app(options, [tokenizer]))

    async def ask() -> None:
        transport = httpx.ASGITransport(APPS[0], raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            content = json.dumps({"model": "tiny", **fields})
            headers = {"content-type": "application/json"}
            check(await client.post(path, content=content, headers=headers))

    asyncio.run(ask())
