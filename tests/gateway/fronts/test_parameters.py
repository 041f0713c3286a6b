"""Every parameter of OpenAI's types is honoured, changes nothing, or is rejected with its name."""

from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from optimist.scheduler.v1 import scheduler_pb2
from tests.gateway.harness import CHAT, COMPLETIONS, Gateway

# The tests of these are `test_chat`, `test_choice`, `test_logprobs`, `test_chat_tools` and
# `text/test_prediction`.
COMMON = {"frequency_penalty", "logit_bias", "max_tokens", "model", "n", "presence_penalty", "seed"}
COMMON |= {"stop", "stream", "stream_options", "temperature", "top_p", "logprobs"}
TOOLS = {"parallel_tool_calls", "response_format", "tool_choice", "tools"}
HONOURED = {
    CHAT: {*COMMON, *TOOLS, "max_completion_tokens", "messages", "prediction", "top_logprobs"},
    COMPLETIONS: {*COMMON, "best_of", "echo", "prompt"},
}
IGNORED: dict[str, dict[str, Any]] = {
    CHAT: {
        "metadata": {"task": "a test"},
        "prompt_cache_key": "key",
        "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
        "prompt_cache_retention": "24h",
        "safety_identifier": "ann",
        "service_tier": "flex",
        "store": True,
        "user": "ann",
    },
    COMPLETIONS: {"user": "ann"},
}
# Each with a value that is refused, and those that ask for nothing.
REFUSED: dict[str, dict[str, tuple[Any, list[Any]]]] = {
    CHAT: {
        "audio": ({"voice": "alloy", "format": "wav"}, [None]),
        "function_call": ("auto", ["none"]),
        "functions": ([{"name": "f"}], [[]]),
        "modalities": (["text", "audio"], [["text"]]),
        "moderation": ({"model": "m"}, [None]),
        "reasoning_effort": ("high", ["none"]),
        "verbosity": ("low", ["medium"]),
        "web_search_options": ({}, [None]),
    },
    COMPLETIONS: {"suffix": ("end", ["", None])},
}
PARAMETERS = {
    CHAT: chat_create_params.CompletionCreateParamsNonStreaming.__annotations__,
    COMPLETIONS: completion_create_params.CompletionCreateParamsNonStreaming.__annotations__,
}


def pairs(of_paths: dict[str, dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(path, name, value, id=f"{name}-{path}")
        for path, of_path in of_paths.items()
        for name, value in of_path.items()
    ]


async def sent(gateway: Gateway, path: str, **fields: Any) -> scheduler_pb2.Add:
    """Returns what reaches the scheduler, without names."""
    gateway.adds.clear()
    response = await gateway.post(path, **{"seed": 1} | fields)
    assert response.status_code == 200, response.text
    add = gateway.adds[0]
    add.handle, add.request_id, add.trace_parent = 0, "", ""
    add.ClearField("names")
    return add


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_no_parameter_is_forgotten(path: str) -> None:
    known = [*HONOURED[path], *IGNORED[path], *REFUSED[path]]
    assert sorted(known) == sorted(set(PARAMETERS[path]) | {"stream"})


@pytest.mark.parametrize(("path", "name", "value"), pairs(IGNORED))
async def test_what_changes_nothing_is_accepted(
    gateway: Gateway, path: str, name: str, value: Any
) -> None:
    gateway.say("x")
    plain = await sent(gateway, path)
    for one in (value, None):
        assert await sent(gateway, path, **{name: one}) == plain


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "name", "values"), pairs(REFUSED))
async def test_what_is_not_supported_is_named(
    gateway: Gateway, path: str, name: str, values: tuple[Any, list[Any]], stream: bool
) -> None:
    gateway.say("x")
    refused, harmless = values
    error = await gateway.refused(path, stream=stream, **{name: refused})
    assert error["param"] == name
    assert name in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] in ("unsupported_parameter", "unsupported_value")
    plain = await sent(gateway, path, stream=stream)
    for value in harmless:
        assert await sent(gateway, path, stream=stream, **{name: value}) == plain
