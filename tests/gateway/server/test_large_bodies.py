"""While the gateway reads one large body, of whatever shape, it answers others."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from tests.gateway.fake_scheduler import FakeScheduler, Script, Step
from tests.gateway.harness import BODIES, CHAT, COMPLETIONS, RESPONSES
from tests.gateway.server.process import gateway

NUM_BYTES = 1_100_000
JSON = {"content-type": "application/json"}
DELAYS, SECOND = "optimist_gateway_event_loop_delay_seconds", '_bucket{le="1.0"}'
CODE = "def area(width, height):\n    return [width * height, {}]\n"


def listed(piece: Any) -> list[Any]:
    """Repeats a value."""
    return [piece] * (NUM_BYTES // (len(json.dumps(piece)) + 1))


def text(piece: str) -> str:
    return piece * (NUM_BYTES // (len(json.dumps(piece)) - 2))


KEYS: dict[str, Any] = {f"{number:x}": 0 for number in range(NUM_BYTES // 10)}
CALL = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
PREDICTED = {"type": "content", "content": "a\n"}
# Each of them would keep the event loop for half a second and more, were it parsed.
TOO_MANY: dict[str, tuple[str, Any]] = {
    "lists": (CHAT, listed([])),
    "keys": (CHAT, KEYS),
    "unknown field": (CHAT, {"a": listed([])}),
    "calls": (CHAT, {"messages": [{"role": "assistant", "tool_calls": listed(CALL)}]}),
    "a tool": (CHAT, {"tools": [{"function": {"name": "a", "parameters": KEYS}}]}),
    "biases": (CHAT, {"logit_bias": KEYS}),
    "parts": (CHAT, {"messages": [{"role": "user", "content": listed({"text": ""})}]}),
    "predictions of tokens": (CHAT, {"predicted_token_ids": listed([5])}),
    "items": (RESPONSES, {"input": listed({"role": "user", "content": ""})}),
}
OTHERS: dict[str, tuple[str, Any]] = {
    "text": (CHAT, {"messages": [{"role": "user", "content": text(CODE)}]}),
    "escapes": (CHAT, {"messages": [{"role": "user", "content": text("\n")}]}),
    "halves of surrogates": (CHAT, {"messages": [{"role": "user", "content": text("\ud800")}]}),
    "regex": (CHAT, {"structured_outputs": {"regex": text("a?")}}),
    "schema": (CHAT, {"response_format": {"type": "json_object", "schema": {"properties": KEYS}}}),
    "predicted tokens": (CHAT, {"predicted_token_ids": listed(5)[: 2**18]}),
    "prompt": (COMPLETIONS, {"prompt": text(CODE)}),
    "prompt with its origin": (
        COMPLETIONS,
        {"prompt": text(CODE)[: NUM_BYTES // 20], "include_provenance": True},
    ),
    "prompt of lines": (
        COMPLETIONS,
        {"prompt": text("a\r\n")[: NUM_BYTES // 40], "prediction": PREDICTED},
    ),
    "echo": (COMPLETIONS, {"prompt": [[12] * 1700] * 128, "echo": True}),
    "a response": (RESPONSES, {"input": text(CODE)}),
    "tokenize": ("/tokenize", {"prompt": text("a b"), "return_token_strs": True}),
    "detokenize": ("/detokenize", {"tokens": listed(5)[: 2**18]}),
}


async def probe(http: httpx.AsyncClient) -> int:
    """Asks how the gateway is until it is cancelled; returns how often it answered."""
    number = 0
    try:
        while True:
            assert (await http.get("/health")).status_code == 200
            number += 1
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        return number


async def test_bodies_of_all_shapes_delay_nobody(
    scheduler: FakeScheduler, model_directory: Path
) -> None:
    scheduler.max_model_len, scheduler.script = 8_192, Script([Step([5])])
    async with gateway(scheduler, model_directory) as (http, _):
        probing = asyncio.create_task(probe(http))
        for name, (path, fields) in (TOO_MANY | OTHERS).items():
            value = BODIES.get(path, {}) | fields if isinstance(fields, dict) else fields
            body = await asyncio.to_thread(json.dumps, value)
            response = await http.post(path, content=body, headers=JSON)
            assert response.status_code in (200, 400, 404), (name, response.text)
            assert response.status_code == 200 or len(response.content) < 1_000, name
            if name in TOO_MANY:
                assert response.json()["error"]["code"] == "too_many_values", name
        probing.cancel()
        assert await probing > 10
        lines = (await http.get("/metrics")).text.splitlines()
        delays = dict(line.rsplit(" ", 1) for line in lines if line.startswith(DELAYS))
        num_timely, number = (float(delays[DELAYS + end]) for end in (SECOND, "_count"))
        # The machine may have other things to do.
        assert num_timely >= 0.75 * number
