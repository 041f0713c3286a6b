"""/v1/responses through the official client."""

import asyncio
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from optimist.scheduler.v1 import scheduler_pb2
from tests.gateway.fake_scheduler import MAX_MODEL_LEN, FakeScheduler, Say, tokens


async def respond(client: AsyncOpenAI, extra: dict[str, Any] | None = None, **options: Any) -> Any:
    options = {"model": "tiny", "input": "Hello"} | options
    return await client.responses.create(**options, extra_body=extra)


async def events_of(client: AsyncOpenAI, extra: Any = None, **options: Any) -> list[Any]:
    stream = await respond(client, extra, stream=True, **options)
    return [event async for event in stream]


async def post(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post("/v1/responses", json={"model": "tiny", "input": "x"} | fields)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


async def test_a_whole_response(client: AsyncOpenAI, say: Say, scheduler: FakeScheduler) -> None:
    token_ids = say("The quick brown fox")
    response = await respond(client, instructions="Be brief.", metadata={"a": "b"}, user="me")
    assert response.id.startswith("resp_")
    assert response.object == "response"
    assert response.status == "completed"
    assert response.output_text == "The quick brown fox"
    assert response.output[0].role == "assistant"
    assert response.output[0].status == "completed"
    assert response.usage.output_tokens == len(token_ids)
    assert response.usage.input_tokens == len(tokens(scheduler.adds[0].prompt_token_ids))
    assert response.usage.total_tokens == response.usage.input_tokens + len(token_ids)
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    assert response.usage.input_tokens_details.cached_tokens == 0
    assert response.error is None
    assert response.incomplete_details is None
    assert response.completed_at is not None
    assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
    assert (response.user, response.truncation) == ("me", "disabled")
    assert response._request_id == response.id == scheduler.adds[0].request_id


async def test_the_prompt_is_that_of_the_chat(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler
) -> None:
    say("ok")
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "More"},
    ]
    await client.chat.completions.create(model="tiny", messages=messages)
    await respond(client, instructions="Be brief.", input=messages[1:])
    first, second = scheduler.adds
    assert first.prompt_token_ids == second.prompt_token_ids


async def test_events_in_their_order(client: AsyncOpenAI, say: Say) -> None:
    say("The quick brown fox 東京", width=3)
    events = await events_of(client)
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4:-4]) == "The quick brown fox 東京"
    assert events[-4].text == "The quick brown fox 東京"
    assert events[0].response.status == "in_progress"
    assert events[0].response.output == []
    final = events[-1].response
    assert final.status == "completed"
    assert final.output_text == "The quick brown fox 東京"
    assert {event.item_id for event in events[4:-4]} == {final.output[0].id}
    assert final.usage.output_tokens > 0


async def test_events_have_names_on_the_wire(http: httpx.AsyncClient, say: Say) -> None:
    say("Hi")
    body = {"model": "tiny", "input": "x", "stream": True}
    response = await http.post("/v1/responses", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.splitlines()
    assert lines[0] == "event: response.created"
    assert lines[1].startswith('data: {"type":"response.created"')
    assert "[DONE]" not in response.text
    assert lines[-3] == "event: response.completed"


async def test_the_clients_own_stream(client: AsyncOpenAI, say: Say) -> None:
    say("The quick brown fox", width=2)
    async with client.responses.stream(model="tiny", input="Hello") as stream:
        kinds = [event.type async for event in stream]
        response = await stream.get_final_response()
    assert response.output_text == "The quick brown fox"
    assert "response.output_text.delta" in kinds


async def test_the_synchronous_client(url: str, say: Say) -> None:
    say("The quick brown fox", width=2)

    def ask() -> tuple[str, str]:
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            whole = client.responses.create(model="tiny", input="Hello").output_text
            with client.responses.stream(model="tiny", input="Hello") as stream:
                return whole, stream.get_final_response().output_text

    assert await asyncio.to_thread(ask) == ("The quick brown fox",) * 2


async def test_a_limit_makes_a_response_incomplete(client: AsyncOpenAI, say: Say) -> None:
    say("The quick", reason=scheduler_pb2.FINISH_REASON_LENGTH)
    response = await respond(client, max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    assert response.completed_at is None
    events = await events_of(client, max_output_tokens=3)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.max_output_tokens == 3


async def test_a_prediction(client: AsyncOpenAI, say: Say, scheduler: FakeScheduler) -> None:
    say("The quick brown fox", width=3, accepted=[2, 1])
    prediction = {"type": "content", "content": "The quick red fox"}
    response = await respond(client, {"prediction": prediction, "include_speculation": True})
    assert tokens(scheduler.adds[0].predicted_token_ids)
    details = response.usage.output_tokens_details.model_extra
    assert details["accepted_prediction_tokens"] == 3
    assert details["tokens_by_source"]["prediction"] == 3
    assert response.usage.model_extra["speculation"]["num_accepted_tokens"] == 3


async def test_where_text_came_from(client: AsyncOpenAI, say: Say) -> None:
    say("The quick brown fox", width=3, accepted=[2, 1])
    extra = {
        "prediction": {"type": "content", "content": "The quick red fox"},
        "include_provenance": True,
    }
    response = await respond(client, extra)
    segments = response.model_extra["provenance"]
    assert "".join(segment["text"] for segment in segments) == response.output_text
    assert {segment["source"] for segment in segments} == {"prediction", "target"}
    segments = [
        segment
        for event in await events_of(client, extra)
        for segment in (event.model_extra or {}).get("provenance", [])
    ]
    assert "".join(segment["text"] for segment in segments) == response.output_text


async def test_the_scheduler_breaks_off(client: AsyncOpenAI, say: Say) -> None:
    say("The quick", break_stream=True)
    events = await events_of(client)
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2].code == "scheduler_unavailable"
    failed = events[-1].response
    assert failed.status == "failed"
    assert failed.error.code == "server_error"
    assert "scheduler" in failed.error.message
    assert failed.output[0].status == "incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_errors_before_the_first_event_have_their_status(
    client: AsyncOpenAI, say: Say
) -> None:
    say("", reason=scheduler_pb2.FINISH_REASON_OVERLOADED)
    with pytest.raises(openai.RateLimitError):
        await events_of(client)
    with pytest.raises(openai.NotFoundError) as caught:
        await respond(client, model="other")
    assert caught.value.param == "model"


async def test_a_client_that_leaves_ends_the_request(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler
) -> None:
    say("The quick", forever=True, pause_seconds=0.01)
    stream = await respond(client, stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    await asyncio.wait_for(scheduler.aborts.get(), 10)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_value"),
        ({"truncation": "auto"}, "truncation", "unsupported_value"),
        ({"reasoning": {"effort": "high"}}, "reasoning", "unsupported_value"),
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"n": 2}, "n", "unknown_parameter"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"include": ["file_search_call.results"]}, "include[0]", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0]", "invalid_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0]",
            "invalid_value",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "["}]},
            "input[0].arguments",
            "invalid_value",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        (
            {"tools": [{"type": "function", "name": "f", "parameters": {"maximum": 2**64}}]},
            "tools[0].parameters",
            "invalid_value",
        ),
        (
            {
                "text": {
                    "format": {"type": "json_schema", "name": "f", "schema": {"const": -(2**63)}}
                }
            },
            "text.format.schema",
            "invalid_value",
        ),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "invalid_value"),
        ({"text": {"verbosity": "high"}}, "text.verbosity", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"max_output_tokens": MAX_MODEL_LEN}, "input", "context_length_exceeded"),
        ({"logit_bias": {"100000": 1}}, "logit_bias", "invalid_value"),
        (
            {
                "tools": [{"type": "function", "name": "f"}],
                "tool_choice": {"type": "function", "name": "g"},
            },
            "tool_choice.name",
            "invalid_value",
        ),
    ],
)
async def test_what_is_wrong_is_named(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str, code: str
) -> None:
    error = await post(http, **fields)
    assert (error["param"], error["code"]) == (param, code), error


@pytest.mark.parametrize(
    "fields",
    [
        {"store": True, "background": False, "truncation": "disabled", "reasoning": None},
        {"previous_response_id": None, "conversation": None, "tool_choice": "auto"},
        {"service_tier": "auto", "prompt_cache_key": "k", "max_tool_calls": 3, "tools": []},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "include": []},
        {"stream_options": {"include_obfuscation": False}, "top_logprobs": 0},
    ],
)
async def test_what_asks_for_the_default_is_taken(
    http: httpx.AsyncClient, say: Say, fields: dict[str, Any]
) -> None:
    say("Hi")
    response = await http.post("/v1/responses", json={"model": "tiny", "input": "x"} | fields)
    assert response.status_code == 200, response.text
    assert response.json()["store"] is False
