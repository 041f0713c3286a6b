"""Whatever is wrong with a request is answered in OpenAI's shape and names the field."""

import re
from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from tests.gateway.fake_scheduler import MAX_MODEL_LEN, FakeScheduler, Script
from tests.gateway.harness import CHAT, COMPLETIONS, RESPONSES, Gateway, Start, error_of

JSON = {"content-type": "application/json"}


async def test_a_priority_needs_a_scheduler_that_honours_it(start: Start) -> None:
    first_come = FakeScheduler(policy=scheduler_pb2.SCHEDULING_POLICY_FCFS)
    async with start(first_come) as gateway:
        gateway.say("x")
        for path in (CHAT, COMPLETIONS, RESPONSES):
            error = await gateway.refused(path, priority=1)
            assert (error["param"], error["code"]) == ("priority", "unsupported_value")
            start_of_message = "priority: is not supported by the scheduler's policy fcfs"
            assert error["message"].startswith(start_of_message)
        assert not gateway.adds
        for path in (CHAT, COMPLETIONS, RESPONSES):
            await gateway.answer(path, priority=0)
        allowed = await allowed_by_document(gateway, "priority")
        assert (allowed["minimum"], allowed["maximum"]) == (0, 0)


async def allowed_by_document(gateway: Gateway, name: str) -> Any:
    schemas = (await gateway.http.get("/openapi.json")).json()["components"]["schemas"]
    return schemas["CompletionBody"]["properties"][name]["anyOf"][0]


async def test_more_drafts_than_the_server_verifies_are_refused(start: Start) -> None:
    async with start(FakeScheduler(max_draft_tokens=8)) as gateway:
        gateway.say("x")
        error = await gateway.refused(COMPLETIONS, num_speculative_tokens=9)
        assert (error["param"], error["code"]) == ("num_speculative_tokens", "invalid_value")
        assert error["message"] == "num_speculative_tokens: must be at most 8 on this server"
        await gateway.answer(COMPLETIONS, num_speculative_tokens=8)
        assert [add.max_draft_tokens for add in gateway.adds] == [8]
        assert (await allowed_by_document(gateway, "num_speculative_tokens"))["maximum"] == 8


def said(content: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content, **fields}]}


def predicted(*contents: Any, **fields: Any) -> dict[str, Any]:
    """Of as many predictions."""
    return {"prediction": [{"type": "content", "content": one, **fields} for one in contents]}


# What the document of the API forbids by itself is tried by the test of the contract.
IMAGE = {"type": "image_url", "image_url": "a"}
LONG = "a" * 30_000
WRONG: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, said("a\ud800"), "messages[0].content"),
    (CHAT, said([IMAGE]), "messages[0].content[0]"),
    (CHAT, said("a", "assistant", tool_calls=[{}]), "messages[0]"),
    (CHAT, said("a", "assistant"), "messages"),
    (CHAT, {"model": None}, "model"),
    (CHAT, {"temperature": "0"}, "temperature"),
    (CHAT, {"seed": 1.5}, "seed"),
    (CHAT, {"logit_bias": {"7": 101}}, "logit_bias.7"),
    (CHAT, {"logit_bias": {"100000": 1}}, "logit_bias"),
    (CHAT, {"max_tokens": True}, "max_tokens"),
    (CHAT, {"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    (CHAT, {"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
    (CHAT, {"cache_salt": "ä" * 129}, "cache_salt"),
    (CHAT, {"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    (CHAT, {"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
    (CHAT, {"prediction": "text"}, "prediction"),
    (CHAT, {"prediction": {"type": "tokens", "content": "a"}}, "prediction.type"),
    (CHAT, {"prediction": predicted([{"type": "text"}])["prediction"][0]}, "prediction.content[0]"),
    (CHAT, predicted("a", "a", [5]), "prediction[2].content[0]"),
    (CHAT, predicted("a", weight=1), "prediction[0].weight"),
    (CHAT, predicted(*"a" * 17), "prediction"),
    (CHAT, predicted("a\ud800"), "prediction[0].content"),
    (CHAT, {"prediction": predicted("ä" * 30_001)["prediction"][0]}, "prediction.content"),
    (CHAT, predicted("a", LONG, LONG), "prediction[2].content"),
    (CHAT, {"predicted_token_ids": [[1], [2, "a"]]}, "predicted_token_ids[1][1]"),
    (CHAT, {"predicted_token_ids": [1, [2]]}, "predicted_token_ids[1]"),
    (CHAT, {"predicted_token_ids": [[1], [2], [100000]]}, "predicted_token_ids[2]"),
    (CHAT, {"predicted_token_ids": [[1]] * 17}, "predicted_token_ids"),
    (CHAT, {"predicted_token_ids": [[5] * MAX_MODEL_LEN] * 5}, "predicted_token_ids[4]"),
    (CHAT, predicted("a") | {"predicted_token_ids": [[1]]}, "predicted_token_ids"),
    (CHAT, {"predicted_token_ids": [1, 100000]}, "predicted_token_ids"),
    (CHAT, {"n": 5}, "n"),
    (CHAT, {"n": 2, "best_of": 3}, "best_of"),
    (CHAT, {"surprise": 1}, "surprise"),
    (CHAT, {"prompt": "a"}, "prompt"),
    (CHAT, {"echo": True}, "echo"),
    (CHAT, {"metadata": {"a" * 65: "b"}}, "metadata"),
    (CHAT, {"metadata": {"a": "b" * 513}}, "metadata.a"),
    (CHAT, {"metadata": {str(number): "b" for number in range(17)}}, "metadata"),
    (CHAT, {"prompt_cache_options": {"mode": "never"}}, "prompt_cache_options.mode"),
    (CHAT, {"top_logprobs": 3}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (COMPLETIONS, {"logprobs": 6}, "logprobs"),
    (COMPLETIONS, {"best_of": 1, "n": 2}, "best_of"),
    (COMPLETIONS, {"best_of": 2, "stream": True}, "best_of"),
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
NO_PROMPTS: list[Any] = ["", [], [[]], [1, "a"], [100_000], None, {"a": 1}]
WRONG += [(COMPLETIONS, {"prompt": prompt}, "prompt") for prompt in NO_PROMPTS]


@pytest.mark.parametrize(("path", "change", "param"), WRONG, ids=lambda one: str(one)[:60])
async def test_wrong_values_are_named(
    gateway: Gateway, path: str, change: dict[str, Any], param: str
) -> None:
    error = await gateway.refused(path, **change)
    assert error["param"] is not None
    assert re.fullmatch(re.escape(param) + r"([.\[].*)?", error["param"])
    assert error["type"] == "invalid_request_error"
    assert gateway.adds == []


async def test_messages_of_errors(gateway: Gateway) -> None:
    error = await gateway.refused(CHAT, surprise=1)
    assert error["message"] == "Unrecognized request argument supplied: surprise"
    error = await gateway.refused(CHAT, 404, model="gpt-9")
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "gpt-9" in error["message"]
    assert "tiny" in error["message"]
    error = await gateway.refused(CHAT, n=5)
    assert error["code"] == "invalid_value"
    assert "4" in error["message"]


NUMBER = b'{"model": "tiny", "messages": [], "temperature": %s}'
NO_BODIES = [b"{", b"", b'{"model": }', b"\xff", b"[" * 100_000]
NO_BODIES += [b"[]", b'"text"', b"5", b"null", b"true"]
NO_BODIES += [NUMBER % number for number in (b"NaN", b"Infinity", b"1e999")]


@pytest.mark.parametrize("content", NO_BODIES, ids=lambda one: repr(one)[:70])
async def test_what_is_no_object_of_json_is_refused(gateway: Gateway, content: bytes) -> None:
    error_of(await gateway.http.post(CHAT, content=content, headers=JSON), 400)


async def test_another_content_type_is_refused(gateway: Gateway) -> None:
    headers = {"content-type": "text/plain"}
    response = await gateway.http.post(CHAT, content=b"{}", headers=headers)
    assert "application/json" in error_of(response, 415)["message"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_refused(gateway: Gateway, chunked: bool) -> None:
    content = b'{"model": "' + b"a" * 300_000 + b'"}'

    async def parts() -> Any:
        for start in range(0, len(content), 50_000):
            yield content[start : start + 50_000]

    sent = parts() if chunked else content
    response = await gateway.http.post(CHAT, content=sent, headers=JSON)
    assert error_of(response, 413)["code"] == "request_too_large"


async def test_unknown_paths_and_methods(gateway: Gateway) -> None:
    http = gateway.http
    assert error_of(await http.get("/v1/nothing"), 404)["code"] == "unknown_url"
    response = await http.get(CHAT)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"
    assert "{" in error_of(await http.get("/v1/%7Bpath%7D"), 404)["message"]


async def test_a_context_that_is_too_long_names_the_numbers(gateway: Gateway) -> None:
    error = await gateway.refused(COMPLETIONS, prompt=[5] * 4000, max_tokens=97)
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("4096", "4000", "97"))
    for content in ("fox " * MAX_MODEL_LEN, "x" * 190_000):
        error = await gateway.refused(CHAT, **said(content))
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert gateway.adds == []


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
    gateway: Gateway,
    reason: "scheduler_pb2.FinishReason.ValueType",
    status: int,
    code: str,
    stream: bool,
) -> None:
    gateway.scheduler.script = Script(reason=reason, message="It cannot run.")
    response = await gateway.post(CHAT, stream=stream)
    error = error_of(response, status)
    assert (error["code"], error["message"]) == (code, "It cannot run.")
    assert ("retry-after" in response.headers) == (status in (429, 503))
