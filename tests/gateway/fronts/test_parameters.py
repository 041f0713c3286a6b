"""Every parameter of OpenAI's types is honoured, changes nothing, or is rejected with its name."""

from typing import Any

import httpx
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from optimist.scheduler.v1 import scheduler_pb2
from tests.gateway.fake_scheduler import USER, FakeScheduler, Say
from tests.gateway.fronts.test_errors import CHAT, COMPLETIONS, error_of, post

COMMON: dict[str, Any] = {
    "frequency_penalty": 0.5,
    "logit_bias": {"7": -100},
    "max_tokens": 7,
    "n": 2,
    "presence_penalty": -0.5,
    "seed": 5,
    "stop": ["zzz", "yyy"],
    "stream": True,
    "temperature": 0.25,
    "top_p": 0.5,
}
HONOURED: dict[str, dict[str, Any]] = {
    CHAT: COMMON
    | {
        "max_completion_tokens": 7,
        "prediction": {"type": "content", "content": "fox"},
    },
    COMPLETIONS: COMMON | {"best_of": 2},
}
# The tests of these are `test_logprobs`, `test_chat` and `test_chat_tools`.
TOOLS = {"parallel_tool_calls", "response_format", "tool_choice", "tools"}
HONOURED_ELSEWHERE = {
    CHAT: {"messages", "model", "stream_options", "logprobs", "top_logprobs", *TOOLS},
    COMPLETIONS: {"prompt", "model", "stream_options", "logprobs", "echo"},
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


def a_body(path: str, **fields: Any) -> dict[str, Any]:
    prompt = {"messages": USER} if path == CHAT else {"prompt": "a"}
    return {"model": "tiny", **prompt, **fields}


async def sent(
    http: httpx.AsyncClient, scheduler: FakeScheduler, path: str, **fields: Any
) -> scheduler_pb2.Add:
    """Returns what reaches the scheduler, without names."""
    scheduler.adds.clear()
    response = await http.post(path, json=a_body(path, **{"seed": 1} | fields))
    assert response.status_code == 200, response.text
    add = scheduler.adds[0]
    add.handle, add.request_id, add.trace_parent = 0, "", ""
    add.ClearField("names")
    return add


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_no_parameter_is_forgotten(path: str) -> None:
    known = [*HONOURED[path], *HONOURED_ELSEWHERE[path], *IGNORED[path], *REFUSED[path]]
    assert sorted(known) == sorted(set(PARAMETERS[path]) | {"stream"})


@pytest.mark.parametrize(("path", "name", "value"), pairs(HONOURED))
async def test_what_is_honoured_changes_something(
    http: httpx.AsyncClient,
    scheduler: FakeScheduler,
    say: Say,
    path: str,
    name: str,
    value: Any,
) -> None:
    say("x")
    plain = await sent(http, scheduler, path)
    assert await sent(http, scheduler, path) == plain
    num_plain = len(scheduler.adds)
    changed = await sent(http, scheduler, path, **{name: value})
    # Stop strings and streams are the gateway's own.
    is_seen = changed != plain or len(scheduler.adds) != num_plain
    assert is_seen is (name not in ("stop", "stream"))


@pytest.mark.parametrize(("path", "name", "value"), pairs(IGNORED))
async def test_what_changes_nothing_is_accepted(
    http: httpx.AsyncClient,
    scheduler: FakeScheduler,
    say: Say,
    path: str,
    name: str,
    value: Any,
) -> None:
    say("x")
    plain = await sent(http, scheduler, path)
    for one in (value, None):
        assert await sent(http, scheduler, path, **{name: one}) == plain


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "name", "values"), pairs(REFUSED))
async def test_what_is_not_supported_is_named(
    http: httpx.AsyncClient,
    scheduler: FakeScheduler,
    say: Say,
    path: str,
    name: str,
    values: tuple[Any, list[Any]],
    stream: bool,
) -> None:
    say("x")
    refused, harmless = values
    body = a_body(path, stream=stream, **{name: refused})
    error = error_of(await post(http, path, body), 400)
    assert error["param"] == name
    assert name in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] in ("unsupported_parameter", "unsupported_value")
    plain = await sent(http, scheduler, path, stream=stream)
    for value in harmless:
        assert await sent(http, scheduler, path, stream=stream, **{name: value}) == plain


WRONG = [
    (CHAT, {"metadata": {"a" * 65: "b"}}, "metadata"),
    (CHAT, {"metadata": {"a": "b" * 513}}, "metadata.a"),
    (CHAT, {"metadata": {str(number): "b" for number in range(17)}}, "metadata"),
    (CHAT, {"prompt_cache_options": {"mode": "never"}}, "prompt_cache_options.mode"),
    (CHAT, {"echo": True}, "echo"),
    (CHAT, {"top_logprobs": 3}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
    (COMPLETIONS, {"logprobs": 6}, "logprobs"),
    (COMPLETIONS, {"logprobs": True}, "logprobs"),
    (COMPLETIONS, {"best_of": 1, "n": 2}, "best_of"),
    (COMPLETIONS, {"best_of": 2, "stream": True}, "best_of"),
    (COMPLETIONS, {"best_of": 5}, "best_of"),
    (COMPLETIONS, {"n": 5}, "n"),
    (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
    (COMPLETIONS, {"tools": []}, "tools"),
    (COMPLETIONS, {"prompt": ["a"] * 4, "n": 2}, "prompt"),
    (COMPLETIONS, {"prompt": ["a"] * 5}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", [100_000]]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": ["a", ""]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": ["a" * 60_000, "a"]}, "prompt"),
]


@pytest.mark.parametrize(("path", "fields", "param"), WRONG)
async def test_wrong_values_are_named(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    error = error_of(await post(http, path, a_body(path, **fields)), 400)
    assert error["param"].startswith(param)
