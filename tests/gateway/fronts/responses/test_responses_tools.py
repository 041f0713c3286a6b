"""Tools, forms and log-probabilities at /v1/responses, through the official client."""

import json
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError
from pydantic import BaseModel

from tests.gateway.fake_scheduler import FakeScheduler, Say

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
NOW: Any = {"type": "function", "name": "now", "parameters": None, "strict": None}
TWO = (
    '{"tool_calls": [{"name": "weather", "arguments": {"city": "Köln"}}, '
    '{"name": "now", "arguments": {}}]}'
)


class Place(BaseModel):
    """What an answer may be."""

    city: str


async def respond(client: AsyncOpenAI, **options: Any) -> Any:
    return await client.responses.create(**({"model": "tiny", "input": "Hello"} | options))


async def test_calls_are_items(client: AsyncOpenAI, say: Say, scheduler: FakeScheduler) -> None:
    say(TWO)
    response = await respond(client, tools=[WEATHER, NOW])
    assert response.status == "completed"
    assert [item.type for item in response.output] == ["function_call", "function_call"]
    assert [item.name for item in response.output] == ["weather", "now"]
    assert json.loads(response.output[0].arguments) == {"city": "Köln"}
    assert len({item.call_id for item in response.output}) == 2
    assert [tool.name for tool in response.tools] == ["weather", "now"]
    assert response.tool_choice == "auto"
    assert scheduler.adds[0].sampling.grammar


@pytest.mark.parametrize("width", [1, 7, 100])
async def test_calls_as_events(client: AsyncOpenAI, say: Say, width: int) -> None:
    say(TWO, width=width)
    events = [event async for event in await respond(client, tools=[WEATHER, NOW], stream=True)]
    arguments: dict[str, str] = {}
    for event in events:
        if event.type == "response.output_item.added":
            assert event.item.type == "function_call"
            assert event.item.arguments == ""
            arguments[event.item.id] = ""
        elif event.type == "response.function_call_arguments.delta":
            arguments[event.item_id] += event.delta
        elif event.type == "response.function_call_arguments.done":
            assert arguments[event.item_id] == event.arguments
    assert list(arguments.values()) == ['{"city": "Köln"}', "{}"]
    final = events[-1].response
    assert [item.arguments for item in final.output] == list(arguments.values())


async def test_the_clients_own_stream_has_calls(client: AsyncOpenAI, say: Say) -> None:
    say(TWO, width=5)
    async with client.responses.stream(
        model="tiny", input="Hello", tools=[WEATHER | {"description": "of a city"}]
    ) as stream:
        response = await stream.get_final_response()
    assert response.output[0].type == "function_call"
    assert response.output[0].parsed_arguments == {"city": "Köln"}


async def test_results_of_calls_go_back(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler
) -> None:
    say(TWO)
    response = await respond(client, tools=[WEATHER, NOW])
    say("Sunny.")
    items: list[Any] = [{"role": "user", "content": "Hello"}, *response.output]
    items += [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sun"}
        for item in response.output
    ]
    again = await respond(client, input=items, tools=[WEATHER, NOW])
    assert again.output_text == "Sunny."
    assert len(scheduler.adds[1].prompt_token_ids) > len(scheduler.adds[0].prompt_token_ids)


async def test_answers_can_be_sent_back(client: AsyncOpenAI, say: Say) -> None:
    say("Hi.")
    response = await respond(client)
    items: list[Any] = [{"role": "user", "content": "Hello"}, *response.output]
    items.append({"role": "user", "content": "And now?"})
    assert (await respond(client, input=items)).output_text == "Hi."


async def test_a_forced_function(client: AsyncOpenAI, say: Say, scheduler: FakeScheduler) -> None:
    say('{"tool_calls": [{"name": "now", "arguments": {}}]}')
    choice = {"type": "function", "name": "now"}
    response = await respond(client, tools=[WEATHER, NOW], tool_choice=choice)
    assert response.output[0].name == "now"
    assert response.tool_choice.name == "now"
    assert "weather" not in scheduler.adds[0].sampling.grammar


async def test_json_of_a_schema(client: AsyncOpenAI, say: Say, scheduler: FakeScheduler) -> None:
    say('{"city": "Rome"}')
    parsed = await client.responses.parse(model="tiny", input="Hello", text_format=Place)
    assert parsed.output_parsed == Place(city="Rome")
    assert "city" in scheduler.adds[0].sampling.grammar
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"


async def test_a_schema_that_cannot_be_followed_is_named(client: AsyncOpenAI) -> None:
    schema = {"type": "json_schema", "name": "x", "schema": {"$ref": "https://example.com"}}
    with pytest.raises(BadRequestError) as caught:
        await respond(client, text={"format": schema})
    assert caught.value.param is not None
    assert caught.value.param.startswith("text.format.schema")


async def test_how_likely_the_tokens_were(client: AsyncOpenAI, say: Say) -> None:
    token_ids = say("The quick brown fox", width=3)
    wanted: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = await respond(client, **wanted)
    logprobs = response.output[0].content[0].logprobs
    assert len(logprobs) == len(token_ids)
    assert all(one.logprob <= 0 and len(one.top_logprobs) == 2 for one in logprobs)
    events = [event async for event in await respond(client, stream=True, **wanted)]
    given = [
        one
        for event in events
        if event.type == "response.output_text.delta"
        for one in event.logprobs
    ]
    assert [one.token for one in given] == [one.token for one in logprobs]
    plain = await respond(client)
    assert plain.output[0].content[0].logprobs == []
