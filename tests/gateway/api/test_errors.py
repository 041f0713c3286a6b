"""What is wrong with a request is answered in OpenAI's shape, and names the field.

Which parameters of OpenAI's types there are; how numbers are read, and how much of a wrong body.
"""

import json
import re
from typing import Any

import pytest
from pydantic import ValidationError

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.api.openai.chat import ChatCompletionBody
from optimist_gateway.api.openai.completions import CompletionBody
from tests.gateway.fake_scheduler import MAX_MODEL_LEN, FakeScheduler, Script
from tests.gateway.harness import BODIES, CHAT, COMPLETIONS, Fields, Gateway, Start, error_of

JSON = {"content-type": "application/json"}


async def test_a_priority_needs_a_scheduler_that_honours_it(start: Start) -> None:
    async with start(FakeScheduler(policy=scheduler_pb2.SCHEDULING_POLICY_FCFS)) as gateway:
        gateway.say("x")
        for number, path in enumerate(BODIES):
            error = await gateway.refused(path, priority=1)
            assert (error["param"], error["code"]) == ("priority", "unsupported_value")
            begin = "priority: is not supported by the scheduler's policy fcfs"
            assert error["message"].startswith(begin)
            assert len(gateway.adds) == number
            await gateway.answer(path, priority=0)


async def test_what_the_engine_does_not_support_is_refused(start: Start) -> None:
    names = ["sampling.min_p", "sampling.logit_bias_token_ids", "sampling.top_p", "of.later", "new"]
    async with start(FakeScheduler(engine="an engine", unsupported_fields=names)) as gateway:
        gateway.say("x")
        asked: list[tuple[str, Any]] = [("min_p", 0.5), ("logit_bias", {"5": 1}), ("top_p", 0.5)]
        for name, value in asked:
            fields: dict[str, Any] = {name: value}
            error = await gateway.refused(COMPLETIONS, **fields)
            assert (error["param"], error["code"]) == (name, "unsupported_value")
            assert error["message"].startswith(f"{name}: is not supported by an engine, which")
        assert not gateway.adds
        await gateway.answer(COMPLETIONS, min_p=0, logit_bias={}, top_p=1)


def said(content: Any, role: str = "user", **fields: Any) -> Fields:
    return {"messages": [{"role": role, "content": content, **fields}]}


def predicted(*contents: Any, **fields: Any) -> Fields:
    """Of as many predictions."""
    return {"prediction": [{"type": "content", "content": one, **fields} for one in contents]}


# What the document of the API forbids by itself is tried by the test of the contract.
LONG = "a" * 30_000
WRONG: list[tuple[str, Fields, str]] = [
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"logit_bias": {"7": 101}}, "logit_bias.7"),
    (CHAT, {"logit_bias": {"100000": 1}}, "logit_bias"),
    (CHAT, {"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    (CHAT, {"min_tokens": 6, "structured_outputs": {"choice": ["a", "ä"]}}, "min_tokens"),
    (CHAT, {"cache_salt": "ä" * 129}, "cache_salt"),
    (CHAT, {"stop": ["a"] * 65}, "stop"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"prediction": {"type": "tokens", "content": "a"}}, "prediction.type"),
    (CHAT, {"prediction": predicted([{"type": "text"}])["prediction"][0]}, "prediction.content[0]"),
    (CHAT, predicted("a", "a", [5]), "prediction[2].content[0]"),
    (CHAT, predicted(*"a" * 17), "prediction"),
    (CHAT, {"prediction": predicted("ä" * 30_001)["prediction"][0]}, "prediction.content"),
    (CHAT, predicted("a", LONG, LONG), "prediction[2].content"),
    (CHAT, {"predicted_token_ids": [[1], [2, "a"]]}, "predicted_token_ids[1][1]"),
    (CHAT, {"predicted_token_ids": [[1], [2], [100000]]}, "predicted_token_ids[2]"),
    (CHAT, {"predicted_token_ids": [[1]] * 17}, "predicted_token_ids"),
    (CHAT, {"predicted_token_ids": [[5] * MAX_MODEL_LEN] * 5}, "predicted_token_ids[4]"),
    (CHAT, predicted("a") | {"predicted_token_ids": [[1]]}, "predicted_token_ids"),
    (CHAT, {"top_logprobs": 3}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (COMPLETIONS, {"logprobs": 6}, "logprobs"),
    (COMPLETIONS, {"n": 5}, "n"),
    (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
    (COMPLETIONS, {"prompt": ["a"] * 5}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", [100_000]]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": ["a", ""]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": ["a" * 60_000, "a"]}, "prompt"),
]
NO_PROMPTS: list[Any] = ["", [], [[]], [1, "a"], [100_000], None, {"a": 1}]
WRONG += [(COMPLETIONS, {"prompt": prompt}, "prompt") for prompt in NO_PROMPTS]


@pytest.mark.parametrize(("path", "change", "param"), WRONG, ids=lambda one: str(one)[:60])
async def test_wrong_values(gateway: Gateway, path: str, change: Fields, param: str) -> None:
    error = await gateway.refused(path, **change)
    assert re.fullmatch(re.escape(param) + r"([.\[].*)?", error["param"] or "")
    assert error["type"] == "invalid_request_error"
    assert gateway.adds == []


NUMBER = b'{"model": "tiny", "messages": [], "temperature": %s}'
NO_BODIES = [b"{", b"", b'{"model": }', b"\xff", b"[" * 100_000]
NO_BODIES += [b"[]", b'"text"', b"5", b"null", b"true"]
NO_BODIES += [NUMBER % number for number in (b"NaN", b"Infinity", b"1e999")]


@pytest.mark.parametrize("content", NO_BODIES, ids=lambda one: repr(one)[:70])
async def test_what_is_no_object_of_json_is_refused(gateway: Gateway, content: bytes) -> None:
    error_of(await gateway.http.post(CHAT, content=content, headers=JSON), 400)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_refused(gateway: Gateway, chunked: bool) -> None:
    content = b'{"model": "' + b"a" * 300_000 + b'"}'

    async def parts() -> Any:
        for start in range(0, len(content), 50_000):
            yield content[start : start + 50_000]

    sent = parts() if chunked else content
    response = await gateway.http.post(CHAT, content=sent, headers=JSON)
    assert error_of(response, 413)["code"] == "request_too_large"


async def test_a_context_that_is_too_long_names_the_numbers(gateway: Gateway) -> None:
    error = await gateway.refused(COMPLETIONS, prompt=[5] * 4096, max_tokens=97)
    assert error["code"] == "context_length_exceeded"
    assert error["message"].count("4096") == 2
    for content in ("fox " * MAX_MODEL_LEN, "x" * 190_000):
        error = await gateway.refused(CHAT, **said(content))
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert gateway.adds == []


@pytest.mark.parametrize(
    ("code", "status"), [("refused", 400), ("overloaded", 429), ("error", 500), ("aborted", 503)]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_scheduler_failures(gateway: Gateway, code: str, status: int, stream: bool) -> None:
    reason = scheduler_pb2.FinishReason.Value(f"FINISH_REASON_{code.upper()}")
    gateway.scheduler.script = Script(reason=reason, message="It cannot run.")
    counter = f'requests_refused_total{{reason="{code}"}}'
    before = (await gateway.figures()).get(counter, 0)
    response = await gateway.post(CHAT, stream=stream)
    error = error_of(response, status)
    assert (error["code"], error["message"]) == (code, "It cannot run.")
    assert ("retry-after" in response.headers) == (status in (429, 503))
    # What is a fault of the server was not refused.
    assert (await gateway.figures()).get(counter, 0) - before == (status != 500)


# Each with a value that is refused, and those that ask for nothing.
REFUSED: dict[str, dict[str, tuple[Any, list[Any]]]] = {
    CHAT: {
        "audio": ({"voice": "alloy", "format": "wav"}, [None]),
        "function_call": ({"name": "f"}, ["none", "auto"]),
        "functions": ([{"name": "f"}], [[]]),
        "modalities": (["text", "audio"], [["text"]]),
    },
    COMPLETIONS: {"suffix": ("end", ["", None])},
}


def pairs(of_paths: dict[str, Fields]) -> list[Any]:
    found = [(path, name, value) for path, own in of_paths.items() for name, value in own.items()]
    return [pytest.param(path, name, value, id=f"{name}-{path}") for path, name, value in found]


async def sent(gateway: Gateway, path: str, **fields: Any) -> scheduler_pb2.Add:
    """Returns what reaches the scheduler, without names."""
    gateway.adds.clear()
    response = await gateway.post(path, **{"seed": 1} | fields)
    assert response.status_code == 200, response.text
    (add,) = gateway.adds
    add.handle, add.request_id, add.trace_parent = 0, "", ""
    add.ClearField("names")
    return add


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "name", "values"), pairs(REFUSED))
async def test_what_is_not_supported_is_named(
    gateway: Gateway, path: str, name: str, values: tuple[Any, list[Any]], stream: bool
) -> None:
    gateway.say("x")
    refused, harmless = values
    error = await gateway.refused(path, stream=stream, **{name: refused})
    assert (error["param"], error["type"]) == (name, "invalid_request_error")
    assert name in error["message"]
    assert error["code"] == "unsupported_value"
    plain = await sent(gateway, path, stream=stream)
    for value in harmless:
        assert await sent(gateway, path, stream=stream, **{name: value}) == plain


def completion(**fields: Any) -> CompletionBody:
    return CompletionBody.model_validate({"model": "tiny", "prompt": "x"} | fields)


WHOLE = [("2", 2), ("2.0", 2), ("-2e1", -20), ("-0.0", 0), ("null", None)]


@pytest.mark.parametrize(("text", "number"), WHOLE)
def test_a_number_without_a_fraction_is_whole(text: str, number: int | None) -> None:
    seed = completion(seed=json.loads(text)).seed
    assert (seed, type(seed)) == (number, type(number))
    # So are those in lists.
    in_lists = completion(predicted_token_ids=[[1.0, 2], [3]]).predicted_token_ids
    assert in_lists == [[1, 2], [3]]


UNKNOWN = [f"unknown_{number}" for number in range(10_000)]
MANY_ERRORS: list[Fields] = [
    {"logit_bias": dict.fromkeys(UNKNOWN, "x")},
    {"messages": [{"role": "user", "content": [{}] * 4096}] * 1000},
    {"messages": [dict.fromkeys(UNKNOWN[:100], 1)] * 1000},
    {"tools": [{"type": "function", "function": {}}] * 128},
]


@pytest.mark.parametrize("wrong", MANY_ERRORS, ids=lambda one: str(one)[:20])
def test_few_errors_are_gathered_of_a_body(wrong: Fields) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]} | wrong
    with pytest.raises(ValidationError) as raised:
        ChatCompletionBody.model_validate(body)
    assert raised.value.error_count() < 128
