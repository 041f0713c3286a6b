"""Whatever is wrong with a request is answered in OpenAI's shape and names the field."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import asking
from tests.gateway.fake_scheduler import MAX_MODEL_LEN, USER, FakeScheduler, Say, Script

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@pytest.fixture
async def http(settings: GatewaySettings, tokenizer: Tokenizer) -> AsyncIterator[httpx.AsyncClient]:
    """The gateway without a socket: there are many tests, and sockets take time to close."""
    async with asking(settings, tokenizer) as client:
        yield client


async def refused(http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int) -> Any:
    return error_of(await post(http, path, body), status)


async def post(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
    """Posts JSON in ASCII, so that halves of surrogate pairs can be sent."""
    headers = {"content-type": "application/json"}
    return await http.post(path, content=json.dumps(body), headers=headers)


def error_of(response: httpx.Response, status: int) -> Any:
    """The error of a response, whose shape is checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert len(error["message"]) <= 400
    return error


@pytest.fixture
def first_come(scheduler: FakeScheduler) -> None:
    scheduler.policy = scheduler_pb2.SCHEDULING_POLICY_FCFS


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        (CHAT, {"messages": USER}),
        (COMPLETIONS, {"prompt": "Hello"}),
        ("/v1/responses", {"input": "Hello"}),
    ],
)
async def test_a_priority_needs_a_scheduler_that_honours_it(
    first_come: None,
    http: httpx.AsyncClient,
    scheduler: FakeScheduler,
    say: Say,
    path: str,
    prompt: dict[str, Any],
) -> None:
    say("x")
    body = {"model": "tiny", **prompt}
    error = await refused(http, path, {**body, "priority": 1}, 400)
    assert (error["param"], error["code"]) == ("priority", "unsupported_value")
    assert error["message"].startswith("priority: is not supported by the scheduler's policy fcfs")
    assert not scheduler.adds
    assert (await post(http, path, {**body, "priority": 0})).status_code == 200
    schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
    allowed = schemas["CompletionBody"]["properties"]["priority"]["anyOf"][0]
    assert (allowed["minimum"], allowed["maximum"]) == (0, 0)


@pytest.fixture
def few_drafts(scheduler: FakeScheduler) -> None:
    scheduler.max_draft_tokens = 8


async def test_more_drafts_than_the_server_verifies_are_refused(
    few_drafts: None, http: httpx.AsyncClient, scheduler: FakeScheduler, say: Say
) -> None:
    say("x")
    body = {"model": "tiny", "prompt": "Hello"}
    error = await refused(http, COMPLETIONS, {**body, "num_speculative_tokens": 9}, 400)
    assert (error["param"], error["code"]) == ("num_speculative_tokens", "invalid_value")
    assert error["message"] == "num_speculative_tokens: must be at most 8 on this server"
    response = await post(http, COMPLETIONS, {**body, "num_speculative_tokens": 8})
    assert response.status_code == 200
    assert [add.max_draft_tokens for add in scheduler.adds] == [8]
    schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
    allowed = schemas["CompletionBody"]["properties"]["num_speculative_tokens"]["anyOf"][0]
    assert allowed["maximum"] == 8


# What the document of the API forbids by itself is tried by the test of the contract.
PREDICTION: dict[str, Any] = {"type": "content", "content": "a"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [*USER, {"role": "user", "content": 5}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "a\ud800"}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "a"}]}]},
        "messages[0].content[0]",
    ),
    ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]}, "messages[0]"),
    ({"messages": [{"role": "assistant", "content": "a"}]}, "messages"),
    ({"model": None}, "model"),
    ({"temperature": "0"}, "temperature"),
    ({"seed": 1.5}, "seed"),
    ({"logit_bias": {"7": 101}}, "logit_bias.7"),
    ({"logit_bias": {"seven": 1}}, "logit_bias.seven"),
    ({"logit_bias": {"100000": 1}}, "logit_bias"),
    ({"max_tokens": True}, "max_tokens"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"cache_salt": "ä" * 129}, "cache_salt"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
    ({"prediction": "text"}, "prediction"),
    ({"prediction": {"content": "text"}}, "prediction.type"),
    ({"prediction": {"type": "tokens", "content": "a"}}, "prediction.type"),
    ({"prediction": {"type": "content", "content": [{"type": "text"}]}}, "prediction.content[0]"),
    ({"prediction": [{"type": "content", "content": "a"}, 5]}, "prediction[1]"),
    (
        {"prediction": [PREDICTION, PREDICTION, {"type": "content", "content": [5]}]},
        "prediction[2].content[0]",
    ),
    ({"prediction": [PREDICTION | {"weight": 1}]}, "prediction[0].weight"),
    ({"prediction": [PREDICTION] * 17}, "prediction"),
    ({"prediction": [PREDICTION | {"content": "a\ud800"}]}, "prediction[0].content"),
    ({"prediction": {"type": "content", "content": "ä" * 30_001}}, "prediction.content"),
    (
        {"prediction": [PREDICTION, *[{"type": "content", "content": "a" * 30_000}] * 2]},
        "prediction[2].content",
    ),
    ({"predicted_token_ids": [[1], [2, "a"]]}, "predicted_token_ids[1][1]"),
    ({"predicted_token_ids": [[1], 2]}, "predicted_token_ids[1]"),
    ({"predicted_token_ids": [1, [2]]}, "predicted_token_ids[1]"),
    ({"predicted_token_ids": [[1], [2], [100000]]}, "predicted_token_ids[2]"),
    ({"predicted_token_ids": [[1]] * 17}, "predicted_token_ids"),
    ({"predicted_token_ids": [[5] * MAX_MODEL_LEN] * 5}, "predicted_token_ids[4]"),
    (
        {"prediction": [PREDICTION], "predicted_token_ids": [[1]]},
        "predicted_token_ids",
    ),
    ({"n": 0}, "n"),
    ({"n": 5}, "n"),
    ({"n": 2, "best_of": 3}, "best_of"),
    ({"predicted_token_ids": [1, 100000]}, "predicted_token_ids"),
    ({"predicted_token_ids": [1, -1]}, "predicted_token_ids"),
    ({"surprise": 1}, "surprise"),
    ({"prompt": "a"}, "prompt"),
]


@pytest.mark.parametrize(("change", "param"), WRONG)
async def test_wrong_values_are_named(
    http: httpx.AsyncClient, scheduler: FakeScheduler, change: dict[str, Any], param: str
) -> None:
    error = await refused(http, CHAT, {"model": "tiny", "messages": USER} | change, 400)
    assert error["param"] is not None
    assert re.fullmatch(re.escape(param) + r"([.\[].*)?", error["param"])
    assert error["type"] == "invalid_request_error"
    assert scheduler.adds == []


@pytest.mark.parametrize("prompt", ["", [], [[]], [1, "a"], [100_000], None, {"a": 1}])
async def test_wrong_prompts_are_named(http: httpx.AsyncClient, prompt: Any) -> None:
    error = await refused(http, COMPLETIONS, {"model": "tiny", "prompt": prompt}, 400)
    assert error["param"].startswith("prompt")


async def test_numbers_that_are_none_are_refused(http: httpx.AsyncClient) -> None:
    for number in ("NaN", "Infinity", "1e999"):
        content = f'{{"model": "tiny", "messages": [], "temperature": {number}}}'
        response = await http.post(
            CHAT, content=content, headers={"content-type": "application/json"}
        )
        error_of(response, 400)


async def test_unknown_arguments_and_models_are_named(http: httpx.AsyncClient) -> None:
    error = await refused(http, CHAT, {"model": "tiny", "messages": USER, "surprise": 1}, 400)
    assert error["message"] == "Unrecognized request argument supplied: surprise"
    error = await refused(http, CHAT, {"model": "gpt-9", "messages": USER}, 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "gpt-9" in error["message"]
    assert "tiny" in error["message"]


@pytest.mark.parametrize("content", [b"{", b"", b'{"model": }', b"\xff", b"[" * 100_000])
async def test_what_is_not_json_is_refused(http: httpx.AsyncClient, content: bytes) -> None:
    response = await http.post(CHAT, content=content, headers={"content-type": "application/json"})
    error_of(response, 400)


@pytest.mark.parametrize("body", [[], "text", 5, None, True])
async def test_what_is_no_object_is_refused(http: httpx.AsyncClient, body: Any) -> None:
    error_of(await http.post(CHAT, json=body), 400)


async def test_another_content_type_is_refused(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
    assert "application/json" in error_of(response, 415)["message"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_refused(http: httpx.AsyncClient, chunked: bool) -> None:
    content = b'{"model": "' + b"a" * 300_000 + b'"}'

    async def parts() -> Any:
        for start in range(0, len(content), 50_000):
            yield content[start : start + 50_000]

    response = await http.post(
        CHAT,
        content=parts() if chunked else content,
        headers={"content-type": "application/json"},
    )
    assert error_of(response, 413)["code"] == "request_too_large"


@pytest.mark.parametrize(
    "body",
    [
        {"model": "a" * 100_000, "messages": USER},
        {"model": "tiny", "messages": USER, "a" * 100_000: 1},
        {"model": "tiny", "messages": USER, "\ud800": 1},
        {"model": "tiny", "messages": USER, "tools": ["a" * 100_000]},
        {"model": "tiny", "messages": [{"role": "a" * 100_000, "content": "a"}]},
        {"model": "tiny", "messages": USER, "logit_bias": {"a" * 100_000: 1}},
        {"model": "tiny", "messages": [{"role": "user", "content": 1}] * 2000},
        {"model": "tiny", "messages": USER, "predicted_token_ids": ["a"] * 30_000},
        {"model": "tiny", "messages": USER, "predicted_token_ids": [["a"] * 9_000] * 3},
        {"model": "tiny", "messages": USER, "prediction": [{"type": "a" * 5_000}] * 20},
        {"model": "tiny", "messages": USER, "prediction": {"type": "content", "a" * 90_000: 1}},
    ],
)
async def test_errors_repeat_little_of_what_was_sent(
    http: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    response = await post(http, CHAT, body)
    assert 400 <= response.status_code < 500
    error_of(response, response.status_code)
    assert len(response.content) < 1000


async def test_unknown_paths_and_methods(http: httpx.AsyncClient) -> None:
    assert error_of(await http.get("/v1/nothing"), 404)["code"] == "unknown_url"
    response = await http.get(CHAT)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"
    assert "{" in error_of(await http.get("/v1/%7Bpath%7D"), 404)["message"]


async def test_a_context_that_is_too_long_names_the_numbers(
    http: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    body = {"model": "tiny", "prompt": [5] * 4000, "max_tokens": 97}
    error = await refused(http, COMPLETIONS, body, 400)
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("4096", "4000", "97"))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "fox " * MAX_MODEL_LEN}]}
    error = await refused(http, CHAT, body, 400)
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 190_000}]}
    assert (await refused(http, CHAT, body, 400))["code"] == "context_length_exceeded"
    assert scheduler.adds == []


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (scheduler_pb2.FINISH_REASON_REFUSED, 400, "refused"),
        (scheduler_pb2.FINISH_REASON_OVERLOADED, 429, "overloaded"),
        (scheduler_pb2.FINISH_REASON_ERROR, 500, "error"),
        (scheduler_pb2.FINISH_REASON_ABORTED, 503, "aborted"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_failures_at_the_scheduler(
    http: httpx.AsyncClient,
    scheduler: FakeScheduler,
    reason: "scheduler_pb2.FinishReason.ValueType",
    status: int,
    code: str,
    stream: bool,
) -> None:
    scheduler.script = Script(reason=reason, message="It cannot run.")
    body = {"model": "tiny", "messages": USER, "stream": stream}
    response = await http.post(CHAT, json=body)
    error = error_of(response, status)
    assert error["code"] == code
    assert error["message"] == "It cannot run."
    assert ("retry-after" in response.headers) == (status in (429, 503))


async def test_the_official_client_understands_errors(client: AsyncOpenAI) -> None:
    messages: Any = USER
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="tiny", messages=messages, n=5)
    assert caught.value.param == "n"
    assert caught.value.code == "invalid_value"
    assert "4" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-9")
