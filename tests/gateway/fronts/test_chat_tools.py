"""Tools and forms of answers, through the official client."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError
from tokenizers import Tokenizer as Backend

from optimist.scheduler.v1 import scheduler_pb2
from tests.gateway.fake_scheduler import USER, FakeScheduler, Say, tokens

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]
ONE = '{"tool_calls": [{"name": "weather", "arguments": {"city": "Köln"}}]}'
TWO = (
    '{"tool_calls": [{"name": "weather", "arguments": {"city": "Köln"}}, '
    '{"name": "now", "arguments": {}}]}'
)


async def chat(client: AsyncOpenAI, extra: dict[str, Any] | None = None, **options: Any) -> Any:
    options = {"model": "tiny", "messages": USER} | options
    return await client.chat.completions.create(**options, extra_body=extra)


async def refused(client: AsyncOpenAI, extra: Any = None, **options: Any) -> Any:
    with pytest.raises(BadRequestError) as caught:
        await chat(client, extra, **options)
    return caught.value


def grammar(scheduler: FakeScheduler) -> str:
    return scheduler.adds[-1].sampling.grammar


async def test_calls_of_a_whole_answer(client: AsyncOpenAI, say: Say) -> None:
    say(TWO)
    choice = (await chat(client, tools=TOOLS)).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert [call.function.name for call in choice.message.tool_calls] == ["weather", "now"]
    arguments = [json.loads(call.function.arguments) for call in choice.message.tool_calls]
    assert arguments == [{"city": "Köln"}, {}]
    ids = {call.id for call in choice.message.tool_calls}
    assert len(ids) == 2
    assert all(one.startswith("call_") for one in ids)
    assert {call.type for call in choice.message.tool_calls} == {"function"}


@pytest.mark.parametrize("width", [1, 2, 7, 100])
async def test_calls_of_a_streamed_answer(client: AsyncOpenAI, say: Say, width: int) -> None:
    say(TWO, width=width)
    calls: dict[int, dict[str, Any]] = {}
    reasons = []
    async for chunk in await chat(client, tools=TOOLS, stream=True):
        delta = chunk.choices[0].delta
        reasons.append(chunk.choices[0].finish_reason)
        assert not delta.content
        for part in delta.tool_calls or []:
            if part.index not in calls:
                assert part.id.startswith("call_")
                assert part.type == "function"
                calls[part.index] = {"name": part.function.name, "arguments": ""}
            else:
                assert part.id is None
                assert part.function.name is None
            calls[part.index]["arguments"] += part.function.arguments
    assert calls == {
        0: {"name": "weather", "arguments": '{"city": "Köln"}'},
        1: {"name": "now", "arguments": "{}"},
    }
    assert reasons[-1] == "tool_calls"
    assert set(reasons[:-1]) == {None}


async def test_text_is_content_though_there_are_tools(client: AsyncOpenAI, say: Say) -> None:
    say('The {"quick"} brown fox\n')
    choice = (await chat(client, tools=TOOLS)).choices[0]
    assert choice.message.content == 'The {"quick"} brown fox\n'
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


async def test_without_tools_a_call_is_text(client: AsyncOpenAI, say: Say) -> None:
    say(ONE)
    options: dict[str, Any]
    for options in ({}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = (await chat(client, **options)).choices[0]
        assert choice.message.content == ONE
        assert choice.finish_reason == "stop"


async def test_a_call_that_is_cut_off_says_so(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler
) -> None:
    say(ONE[:-8])
    scheduler.script.steps = scheduler.script.steps[:-1]
    scheduler.script.reason = scheduler_pb2.FINISH_REASON_LENGTH
    choice = (await chat(client, tools=TOOLS)).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.arguments == '{"city": "K'


async def test_a_stop_string_in_a_call_ends_it(client: AsyncOpenAI, say: Say) -> None:
    say(ONE, width=5)
    choice = (await chat(client, tools=TOOLS, stop=["öl"])).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls[0].function.arguments == '{"city": "K'


async def test_choices_have_their_own_calls(client: AsyncOpenAI, say: Say) -> None:
    say(ONE, width=3)
    answer = await chat(client, tools=TOOLS, n=3)
    calls = [choice.message.tool_calls[0] for choice in answer.choices]
    assert len({call.id for call in calls}) == 3
    assert {call.function.arguments for call in calls} == {'{"city": "Köln"}'}


CHOICES: list[tuple[Any, list[str], list[str]]] = [
    (None, ["PLAIN", '"\\"weather\\""', '"\\"now\\""'], []),
    ("auto", ["PLAIN"], []),
    ("required", ['"\\"weather\\""', '"\\"now\\""', "call)*"], ["PLAIN"]),
    ({"type": "function", "function": {"name": "now"}}, ['"\\"now\\""'], ["PLAIN", "weather"]),
    (
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "weather"}}],
            },
        },
        ["weather"],
        ["PLAIN", '"\\"now\\""'],
    ),
]


@pytest.mark.parametrize(("choice", "has", "lacks"), CHOICES)
async def test_the_grammar_follows_the_choice(
    client: AsyncOpenAI,
    say: Say,
    scheduler: FakeScheduler,
    choice: Any,
    has: list[str],
    lacks: list[str],
) -> None:
    say(ONE)
    await chat(client, {"tool_choice": choice}, tools=TOOLS)
    assert all(part in grammar(scheduler) for part in has)
    assert not any(part in grammar(scheduler) for part in lacks)


async def test_calls_may_be_kept_from_being_parallel(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler
) -> None:
    say(ONE)
    await chat(client, tools=TOOLS, parallel_tool_calls=False, tool_choice="required")
    assert "call)*" not in grammar(scheduler)


async def test_a_conversation_with_calls_and_results(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler, backend: Backend
) -> None:
    say(ONE)
    first = (await chat(client, tools=TOOLS)).choices[0].message
    say("Rain.")
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "rain"}
    messages = [*USER, first.model_dump(), result]
    answer = await chat(client, tools=TOOLS, messages=messages)
    assert answer.choices[0].message.content == "Rain."
    prompt = backend.decode(tokens(scheduler.adds[-1].prompt_token_ids))
    assert '"description": "The time."' in prompt
    assert f"<|assistant|>{ONE}\n" in prompt
    assert '<|user|>{"name": "weather", "result": "rain"}\n' in prompt


FORMATS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, '"type": "object"'),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": WEATHER},
            }
        },
        '"city"',
    ),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, '"object"'),
    ({"structured_outputs": {"json": WEATHER}}, '"city"'),
    ({"structured_outputs": {"regex": "a/b"}}, r"/a\/b/"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, 'start: "yes" | "no"'),
    ({"structured_outputs": {"grammar": 'start: "x"'}}, 'start: "x"'),
]


@pytest.mark.parametrize(("extra", "part"), FORMATS)
async def test_forms_become_grammars(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler, extra: dict[str, Any], part: str
) -> None:
    say('{"city": "x"}')
    answer = await chat(client, extra)
    assert answer.choices[0].message.content == '{"city": "x"}'
    assert part in grammar(scheduler)


async def test_completions_take_the_extension(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler
) -> None:
    say("yes")
    body = {"structured_outputs": {"choice": ["yes", "no"]}}
    await client.completions.create(model="tiny", prompt=["Well?", "So?"], extra_body=body)
    assert [add.sampling.grammar.splitlines()[0] for add in scheduler.adds] == [
        'start: "yes" | "no"'
    ] * 2


async def test_any_text_needs_no_grammar(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler
) -> None:
    say("x")
    await chat(client, response_format={"type": "text"}, tools=[])
    await chat(client, {"response_format": None, "structured_outputs": None, "tools": None})
    assert [add.sampling.grammar for add in scheduler.adds] == ["", ""]


async def test_a_form_and_tools_together(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler
) -> None:
    say(ONE)
    form = {"type": "json_object"}
    choice = (await chat(client, tools=TOOLS, response_format=form)).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert "PLAIN" not in grammar(scheduler)
    say('{"a": 1}')
    choice = (await chat(client, tools=TOOLS, response_format=form)).choices[0]
    assert choice.message.content == '{"a": 1}'


def function(**parts: Any) -> Any:
    return [{"type": "function", "function": {"name": "f", **parts}}]


def call(**parts: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}", **parts.pop("function", {})}
    return {"id": "call_1", "type": "function", "function": function, **parts}


def assistant(*calls: Any, **parts: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **parts}


def schema(value: Any, **parts: Any) -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": value, **parts}}
    return {"response_format": form}


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


# Longer than whatever the model takes.
LONG_TEXT = json.dumps({"a": "x" * 190_000})
PLACE = "response_format.json_schema.schema"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": function(name="a b")}, "tools[0].function.name"),
    ({"tools": function(name="")}, "tools[0].function.name"),
    ({"tools": function(parameters=[])}, "tools[0].function.parameters"),
    ({"tools": function(parameters={"type": "array"})}, "tools[0].function.parameters"),
    ({"tools": function(description="\ud800")}, "tools[0].function.description"),
    ({"tools": function(parameters={"title": "\ud800"})}, "tools[0].function.parameters"),
    ({"tools": function(more=1)}, "tools[0].function.more"),
    ({"tools": function(parameters={"not": {}}, strict=True)}, "tools[0].function.parameters.not"),
    ({"tools": function() * 2}, "tools[1].function.name"),
    ({"tools": function() * 129}, "tools"),
    ({"tools": function(parameters={"maximum": 2**63})}, "tools[0].function.parameters"),
    (
        {
            "tools": [
                *function(name="f", parameters={"enum": [0] * 15_000}),
                *function(name="g", parameters={"enum": [0] * 15_000}),
            ]
        },
        "tools",
    ),
    ({"messages": [assistant(call(function={"arguments": LONG_TEXT}))]}, "messages"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"tool_choice": "any", "tools": TOOLS}, "tool_choice"),
    ({"tool_choice": named("f"), "tools": TOOLS}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "tool_choice.function"),
    (
        {
            "tools": TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [named("now"), named("f")]},
            },
        },
        "tool_choice.allowed_tools.tools[1].function.name",
    ),
    ({"guided_json": {}}, "guided_json"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (schema({}, name="a b"), "response_format.json_schema.name"),
    (schema([]), PLACE),
    (schema({"items": {"uniqueItems": True}}), f"{PLACE}.items.uniqueItems"),
    (schema({"type": "strung"}), PLACE),
    (schema({"const": "a" * 70_000}), PLACE),
    (schema({"enum": []}), PLACE),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs",
    ),
    (
        {"structured_outputs": {"grammar": 'start: "a"'}, "tools": TOOLS},
        "structured_outputs.grammar",
    ),
]
MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"role": "assistant", "content": None}, "messages[0]"),
    ({"role": "assistant", "tool_calls": []}, "messages[0]"),
    (assistant(call(id="")), "messages[0].tool_calls[0].id"),
    (assistant(call(function={"name": "a b"})), "messages[0].tool_calls[0].function.name"),
    *(
        (
            assistant(call(function={"arguments": text})),
            "messages[0].tool_calls[0].function.arguments",
        )
        for text in ("{", "[]", "1", '{"a": NaN}', '{"a": "\\ud800"}', "[" * 50_000, '{"a":' * 5000)
    ),
    (assistant(*[call()] * 129), "messages[0].tool_calls"),
    ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
    ({"role": "tool", "tool_call_id": "a"}, "messages[0].content"),
    ({"role": "user", "content": "x", "tool_calls": [call()]}, "messages[0].tool_calls"),
    ({"role": "function", "name": "f", "content": "x"}, "messages[0].role"),
]
REFUSED += [({"messages": [message]}, param) for message, param in MESSAGES]


@pytest.mark.parametrize(("extra", "param"), REFUSED, ids=lambda one: str(one)[:60])
async def test_what_is_wrong_is_named(
    http: httpx.AsyncClient, scheduler: FakeScheduler, extra: dict[str, Any], param: str
) -> None:
    body = {"model": "tiny", "messages": USER, **extra}
    # The client's JSON encoder would refuse halves of surrogate pairs.
    answer = await http.post(
        "/v1/chat/completions",
        content=json.dumps(body),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert len(answer.content) < 2000
    assert not scheduler.adds


async def test_arguments_may_have_integers_of_any_size(
    http: httpx.AsyncClient, say: Say, scheduler: FakeScheduler, backend: Backend
) -> None:
    say("fine")
    arguments = '{"n": 123456789012345678901234567890}'
    messages = [assistant(call(function={"arguments": arguments}))]
    answer = await http.post(
        "/v1/chat/completions", json={"model": "tiny", "messages": [*USER, *messages]}
    )
    assert answer.status_code == 200, answer.text
    prompt = backend.decode(list(scheduler.adds[-1].prompt_token_ids))
    # The first digit is a token of its own, which has no text here.
    assert "23456789012345678901234567890" in prompt


async def test_what_a_grammar_cannot_follow_may_be_left_out(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler
) -> None:
    say("{}")
    wide = {"type": "array", "uniqueItems": True}
    await chat(client, schema(wide, strict=False))
    assert "uniqueItems" not in grammar(scheduler)
    error = await refused(client, schema(wide))
    assert "uniqueItems is not supported" in str(error)
    await chat(client, tools=function(parameters={"type": "object", "not": {}}))


async def test_a_grammar_that_takes_long_harms_no_neighbour(client: AsyncOpenAI, say: Say) -> None:
    say("x")
    numbers = [{"type": "integer", "multipleOf": number} for number in (9973, 9967, 9949, 9941)]
    bomb = asyncio.create_task(refused(client, schema({"allOf": numbers})))
    neighbours = [chat(client), chat(client, response_format={"type": "text"})]
    for answer in await asyncio.gather(*neighbours):
        assert answer.choices[0].message.content == "x"
    assert not bomb.done()
    assert "too complex" in str(await bomb)
