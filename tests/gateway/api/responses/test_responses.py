"""/v1/responses through the official client."""

from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from tests.gateway.fake_scheduler import MAX_MODEL_LEN, tokens
from tests.gateway.harness import RESPONSES, Fields, Gateway

PREDICTION = {"type": "content", "content": "The quick red fox"}


async def events_of(gateway: Gateway, extra: Any = None, **options: Any) -> list[Any]:
    return [event async for event in await gateway.respond(extra, stream=True, **options)]


async def test_a_whole_response(gateway: Gateway) -> None:
    token_ids = gateway.say("The quick brown fox")
    options: Fields = {"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "me"}
    response = await gateway.respond(**options)
    assert response.id.startswith("resp_")
    assert (response.object, response.status) == ("response", "completed")
    assert response.output_text == "The quick brown fox"
    assert (response.output[0].role, response.output[0].status) == ("assistant", "completed")
    usage, num_prompt = response.usage, len(tokens(gateway.adds[0].prompt_token_ids))
    assert (usage.input_tokens, usage.output_tokens) == (num_prompt, len(token_ids))
    assert usage.total_tokens == num_prompt + len(token_ids)
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert usage.input_tokens_details.cached_tokens == 0
    assert response.error is response.incomplete_details is None
    assert response.completed_at is not None
    assert {name: getattr(response, name) for name in options} == options
    assert response.truncation == "disabled"
    assert response._request_id == response.id == gateway.adds[0].request_id


async def test_events_in_their_order(gateway: Gateway) -> None:
    text = "The quick brown fox 東京"
    gateway.say(text, width=3)
    events = await events_of(gateway)
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4:-4]) == events[-4].text == text
    assert (events[0].response.status, events[0].response.output) == ("in_progress", [])
    final = events[-1].response
    assert (final.status, final.output_text) == ("completed", text)
    assert {event.item_id for event in events[4:-4]} == {final.output[0].id}
    assert final.usage.output_tokens > 0


async def test_a_limit_makes_a_response_incomplete(gateway: Gateway) -> None:
    gateway.say("The quick", reason=scheduler_pb2.FINISH_REASON_LENGTH)
    response = await gateway.respond(max_output_tokens=3)
    assert response.status == response.output[0].status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.completed_at is None
    assert gateway.adds[0].max_tokens == 3
    last = (await events_of(gateway, max_output_tokens=3))[-1]
    assert (last.type, last.response.max_output_tokens) == ("response.incomplete", 3)


async def test_a_prediction_and_where_text_came_from(gateway: Gateway) -> None:
    gateway.say("The quick brown fox", width=3, accepted=[2, 1])
    extra = {"prediction": PREDICTION, "include_speculation": True, "include_provenance": True}
    response = await gateway.respond(extra)
    assert tokens(gateway.adds[0].predicted_token_ids)
    details = response.usage.output_tokens_details.model_extra
    assert details["accepted_prediction_tokens"] == 3
    assert details["tokens_by_source"]["prediction"] == 3
    assert response.usage.model_extra["speculation"]["num_accepted_tokens"] == 3
    whole = response.model_extra["provenance"]
    assert {segment["source"] for segment in whole} == {"prediction", "target"}
    events = [event.model_extra or {} for event in await events_of(gateway, extra)]
    streamed = [segment for event in events for segment in event.get("provenance", [])]
    for segments in (whole, streamed):
        assert "".join(segment["text"] for segment in segments) == response.output_text


async def test_the_scheduler_breaks_off(gateway: Gateway) -> None:
    gateway.say("The quick", break_stream=True)
    events = await events_of(gateway)
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2].code == "scheduler_unavailable"
    failed = events[-1].response
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert "scheduler" in failed.error.message
    assert failed.output[0].status == "incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))


def schema(value: Any, **parts: Any) -> Fields:
    return {"text": {"format": {"type": "json_schema", "name": "f", "schema": value, **parts}}}


def function(**fields: Any) -> Fields:
    return {"tools": [{"type": "function", "name": "f", **fields}]}


OTHER_FUNCTION = function() | {"tool_choice": {"type": "function", "name": "g"}}
UNSUPPORTED: list[tuple[Any, str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": {"id": "conv_1"}}, "conversation"),
]
INVALID: list[tuple[Any, str]] = [
    # It is written back.
    ({"max_tool_calls": 2**70}, "max_tool_calls"),
    (OTHER_FUNCTION, "tool_choice"),
    (schema({"$ref": "https://example.com"}, strict=True), "text.format.schema"),
    ({"logit_bias": {"100000": 1}}, "logit_bias"),
]
WRONG: list[tuple[Any, str, str]] = [
    *((*one, "unsupported_value") for one in UNSUPPORTED),
    *((*one, "invalid_value") for one in INVALID),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ({"input": "fox " * MAX_MODEL_LEN}, "input", "context_length_exceeded"),
    ({"input": []}, "input", "invalid_value"),
]


@pytest.mark.parametrize(("fields", "param", "code"), WRONG)
async def test_wrong_values(gateway: Gateway, fields: Fields, param: str, code: str) -> None:
    error = await gateway.refused(RESPONSES, **fields)
    assert (error["param"], error["code"]) == (param, code), error


INCLUDED = ["reasoning.encrypted_content", "web_search_call.action.sources"]
KEY = "01a21ed3-3087-7933-a408-950deb9d0ae7"
CACHING = {"prompt_cache_key": KEY, "prompt_cache_options": {"mode": "implicit", "ttl": "12h"}}


@pytest.mark.parametrize(
    "fields",
    [
        {"store": True, "background": False, "truncation": "disabled", "reasoning": None},
        {"service_tier": "on_demand", "max_tool_calls": 3, "tools": []},
        {"text": None, "include": None, "tool_choice": None, "parallel_tool_calls": None},
        # openai/openai-node#1791, webai-at-home/webai-at-home#214 and their neighbours.
        {"reasoning": {"summary": "auto"}, "include": INCLUDED},
        {"reasoning": {"effort": "minimal", "generate_summary": "concise", "context": "auto"}},
        CACHING,
    ],
)
async def test_what_changes_nothing_is_taken(gateway: Gateway, fields: Fields) -> None:
    gateway.say("Hi")
    response = await gateway.post(RESPONSES, **fields)
    assert response.status_code == 200, response.text
    assert response.json()["store"] is False
    assert "x-ignored-fields" not in response.headers
