"""Parameters of OpenAI's types; numbers in bodies, and how much is read of a wrong one."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from pydantic import BaseModel, ValidationError

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.fronts.openai.bodies.base import Body
from optimist_gateway.fronts.openai.bodies.chat import ChatCompletionBody
from optimist_gateway.fronts.openai.completions import CompletionBody
from optimist_gateway.fronts.openai.models import DetokenizeBody, TokenizeBody
from optimist_gateway.fronts.openai.responses.body import ResponsesBody
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
async def test_what_is_ignored_is_taken(gateway: Gateway, path: str, name: str, value: Any) -> None:
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


PROMPT = {"model": "tiny", "prompt": "x"}


@pytest.mark.parametrize(
    ("text", "number"), [("2", 2), ("2.0", 2), ("-2e1", -20), ("-0.0", 0), ("null", None)]
)
def test_a_number_without_a_fraction_is_whole(text: str, number: int | None) -> None:
    body = CompletionBody.model_validate(PROMPT | {"seed": json.loads(text)})
    assert body.seed == number
    assert type(body.seed) is type(number)


@pytest.mark.parametrize("text", ["2.5", "1e400", "NaN", "true", '"2"', "1e300"])
def test_other_numbers_are_not(text: str) -> None:
    with pytest.raises(ValidationError, match="n\n"):
        CompletionBody.model_validate(PROMPT | {"n": json.loads(text)})


def test_so_are_those_in_lists() -> None:
    tokens = [[1.0, 2], [3]]
    body = CompletionBody.model_validate(PROMPT | {"predicted_token_ids": tokens})
    assert body.predicted_token_ids == [[1, 2], [3]]
    with pytest.raises(ValidationError, match="predicted_token_ids"):
        CompletionBody.model_validate(PROMPT | {"predicted_token_ids": [[1.5]]})


BODIES: list[type[Body]] = [
    ChatCompletionBody,
    CompletionBody,
    ResponsesBody,
    TokenizeBody,
    DetokenizeBody,
]


def _list_schemas(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        for value in schema.values():
            yield from _list_schemas(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _list_schemas(value)


@pytest.mark.parametrize("body", BODIES)
def test_every_list_ends_at_its_first_error(body: type[BaseModel]) -> None:
    lists = list(_list_schemas(body.__pydantic_core_schema__))
    assert lists
    for found in lists:
        assert found.get("fail_fast") or found["items_schema"]["type"] == "any", found


@pytest.mark.parametrize(
    "wrong",
    [
        {f"unknown_{number}": number for number in range(10_000)},
        {"logit_bias": {f"a{number}": "x" for number in range(10_000)}},
        {"metadata": {str(number): number for number in range(10_000)}},
        {"messages": [{"role": "user", "content": [{}] * 4096}] * 1000},
        {"messages": [{f"unknown_{number}": 1 for number in range(100)}] * 1000},
        {"tools": [{"type": "function", "function": {}}] * 128},
    ],
)
def test_few_errors_are_gathered_of_a_body(wrong: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]} | wrong
    with pytest.raises(ValidationError) as raised:
        ChatCompletionBody.model_validate(body)
    assert raised.value.error_count() < 128
