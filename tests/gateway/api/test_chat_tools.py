"""Tools and forms of answers, through the official client."""

import asyncio
import json
from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from tests.gateway.fake_scheduler import tokens
from tests.gateway.harness import CHAT, USER, Fields, Gateway

CITY_ONLY = {"properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "object", **CITY_ONLY, "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]
KOELN = '{"name": "weather", "arguments": {"city": "Köln"}}'
ONE = f'{{"tool_calls": [{KOELN}]}}'
TWO = f'{{"tool_calls": [{KOELN}, {{"name": "now", "arguments": {{}}}}]}}'


async def choice_of(gateway: Gateway, extra: Fields | None = None, **options: Any) -> Any:
    return (await gateway.chat(extra, **options)).choices[0]


def grammar(gateway: Gateway) -> str:
    return gateway.adds[-1].sampling.grammar


@pytest.mark.parametrize("width", [1, 2, 7, 100])
async def test_calls_of_a_streamed_answer(gateway: Gateway, width: int) -> None:
    gateway.say(TWO, width=width)
    calls: dict[int, list[str]] = {}
    reasons = []
    async for chunk in await gateway.chat(tools=TOOLS, stream=True):
        delta = chunk.choices[0].delta
        reasons.append(chunk.choices[0].finish_reason)
        assert not delta.content
        for part in delta.tool_calls or []:
            if part.index not in calls:
                assert (part.id[:5], part.type) == ("call_", "function")
                calls[part.index] = [part.function.name, ""]
            else:
                assert part.id is part.function.name is None
            calls[part.index][1] += part.function.arguments
    assert calls == {0: ["weather", '{"city": "Köln"}'], 1: ["now", "{}"]}
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('The {"quick"} brown fox\n', {"tools": TOOLS}),
        (ONE, {}),
        (ONE, {"tools": [], "response_format": {"type": "text"}}),
        (ONE, {"tools": None, "response_format": None, "structured_outputs": None}),
        (ONE, {"tools": TOOLS, "tool_choice": "none"}),
    ],
)
async def test_what_is_no_call_is_text(gateway: Gateway, text: str, options: Fields) -> None:
    gateway.say(text)
    choice = await choice_of(gateway, options)
    assert (choice.message.content, choice.message.tool_calls) == (text, None)
    assert choice.finish_reason == "stop"
    # Any text needs no grammar; a call may begin anywhere in it.
    assert bool(grammar(gateway)) is (text != ONE)


@pytest.mark.parametrize("reason", ["length", "stop"])
async def test_a_call_may_be_cut_off(gateway: Gateway, reason: str) -> None:
    if reason == "stop":
        gateway.say(ONE, width=5)
    else:
        gateway.say(ONE[:-8], reason=scheduler_pb2.FINISH_REASON_LENGTH)
        gateway.scheduler.script.steps = gateway.scheduler.script.steps[:-1]
    choice = await choice_of(gateway, tools=TOOLS, stop=["öl"] if reason == "stop" else None)
    assert choice.finish_reason == reason
    assert choice.message.tool_calls[0].function.arguments == '{"city": "K'


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> Any:
    tools = {"mode": mode, "tools": [named(name) for name in names]}
    return {"type": "allowed_tools", "allowed_tools": tools}


NOW, CITY = '"\\"now\\""', '"\\"weather\\""'
CHOICES: list[tuple[Fields, list[str], list[str]]] = [
    ({"tool_choice": None}, ["PLAIN", CITY, NOW], []),
    ({"tool_choice": "auto"}, ["PLAIN"], []),
    ({"tool_choice": {"type": "auto"}}, ["PLAIN"], []),
    ({"tool_choice": "required"}, [CITY, NOW, "call)*"], ["PLAIN"]),
    ({"tool_choice": "required", "parallel_tool_calls": False}, [CITY], ["call)*"]),
    ({"tool_choice": named("now")}, [NOW], ["PLAIN", "weather"]),
    ({"tool_choice": allowed("required", "weather")}, ["weather"], ["PLAIN", NOW]),
]


@pytest.mark.parametrize(("choice", "has", "lacks"), CHOICES)
async def test_grammars_of_choices(
    gateway: Gateway, choice: Fields, has: list[str], lacks: list[str]
) -> None:
    gateway.say(ONE)
    await gateway.chat(choice, tools=TOOLS)
    assert all(part in grammar(gateway) for part in has)
    assert not any(part in grammar(gateway) for part in lacks)


async def test_a_conversation_with_calls_and_results(gateway: Gateway) -> None:
    gateway.say(ONE)
    first = (await choice_of(gateway, tools=TOOLS)).message
    gateway.say("Rain.")
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "rain"}
    messages = [*USER, first.model_dump(), result]
    choice = await choice_of(gateway, tools=TOOLS, messages=messages)
    assert choice.message.content == "Rain."
    prompt = gateway.backend.decode(tokens(gateway.adds[-1].prompt_token_ids))
    assert '"description": "The time."' in prompt
    assert f"<|assistant|>{ONE}\n" in prompt
    assert '<|user|>{"name": "weather", "result": "rain"}\n' in prompt


def schema(value: Any, **parts: Any) -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": value, **parts}}
    return {"response_format": form}


def structured(**parts: Any) -> Any:
    return {"structured_outputs": parts}


JSON_OBJECT: Any = {"response_format": {"type": "json_object"}}
NO_SCHEMA: Any = {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}
FORMATS: list[tuple[Fields, str]] = [
    (JSON_OBJECT, '"type": "object"'),
    (schema(WEATHER), '"city"'),
    (NO_SCHEMA, '"object"'),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": WEATHER}}}, '"city"'),
    # llama.cpp's and others' forms of a schema
    ({"response_format": {"type": "json_object", "schema": WEATHER}}, '"city"'),
    ({"response_format": {"type": "json_schema", "schema": WEATHER}}, '"city"'),
    (structured(json=WEATHER), '"city"'),
    (structured(regex="a/b"), r"/a\/b/"),
    ({"guided_json": json.dumps(WEATHER)}, '"city"'),
    ({"guided_regex": "a/b"}, r"/a\/b/"),
    ({"guided_choice": ["yes", "no"]}, 'CHOICE: "yes" | "no"'),
    ({"guided_grammar": 'start: "x"'}, 'start: "x"'),
    (structured(choice=["yes", "no"]), 'start: CHOICE\nCHOICE: "yes" | "no"'),
    (structured(grammar='start: "x"'), 'start: "x"'),
]


@pytest.mark.parametrize(("extra", "part"), FORMATS)
async def test_forms_become_grammars(gateway: Gateway, extra: Fields, part: str) -> None:
    gateway.say('{"city": "x"}')
    assert (await choice_of(gateway, extra)).message.content == '{"city": "x"}'
    if "response_format" not in extra:
        await gateway.complete(extra, prompt=["Well?", "So?"])
    assert all(part in add.sampling.grammar for add in gateway.adds)


async def test_a_form_is_of_no_matter_where_a_call_is_required(gateway: Gateway) -> None:
    # instructor's mode RESPONSES_TOOLS says both.
    form = schema({"type": "array", "uniqueItems": True}, strict=True)
    await gateway.answer(CHAT, tools=TOOLS, tool_choice="required", **form)
    error = await gateway.refused(CHAT, tools=TOOLS, **form)
    assert error["param"] == PLACE


def function(**parts: Any) -> Any:
    return [{"type": "function", "function": {"name": "f", **parts}}]


def with_arguments(text: str) -> Fields:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": text}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def with_tools(choice: Any, tools: Any = TOOLS) -> Fields:
    return {"tool_choice": choice, "tools": tools}


# Longer than whatever the model takes.
LONG_TEXT = json.dumps({"a": "x" * 190_000})
PLACE, FUNCTION = "response_format.json_schema.schema", "tools[0].function"
REFUSED: list[tuple[Fields, str]] = [
    ({"tools": [{"type": 5}]}, "tools[0].type"),
    ({"tools": function(name="a b")}, f"{FUNCTION}.name"),
    ({"tools": function(name="a" * 129)}, f"{FUNCTION}.name"),
    ({"tools": function(parameters={"type": "array"}, strict=True)}, f"{FUNCTION}.parameters"),
    (
        {"tools": function(parameters={"not": {"type": "null"}}, strict=True)},
        f"{FUNCTION}.parameters",
    ),
    ({"tools": function() * 2}, "tools[1].function.name"),
    ({"tools": function() * 513}, "tools"),
    ({"tools": function(parameters={"maximum": 2**64})}, f"{FUNCTION}.parameters"),
    ({"messages": [with_arguments(LONG_TEXT)]}, "messages"),
    ({"tool_choice": "required"}, "tool_choice"),
    (with_tools(named("f")), "tool_choice"),
    (with_tools(allowed("auto", "now", "f")), "tool_choice"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex"),
    ({"guided_grammar": "start: x"}, "guided_grammar"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    (schema(["a"]), PLACE),
    (schema({"type": "strung"}, strict=True), PLACE),
    (structured(), "structured_outputs"),
    (structured(regex="a", choice=["a"]), "structured_outputs"),
    (structured(regex="("), "structured_outputs.regex"),
    (structured(grammar="start: x"), "structured_outputs.grammar"),
    (structured(regex="a") | JSON_OBJECT, "structured_outputs.regex"),
    (structured(grammar='start: "a"') | {"tools": TOOLS}, "structured_outputs.grammar"),
]


@pytest.mark.parametrize(("extra", "param"), REFUSED, ids=lambda one: str(one)[:60])
async def test_what_is_wrong_is_named(gateway: Gateway, extra: Fields, param: str) -> None:
    assert (await gateway.refused(CHAT, **extra))["param"] == param
    assert not gateway.adds


async def test_what_a_grammar_cannot_follow_may_be_left_out(gateway: Gateway) -> None:
    gateway.say("{}")
    wide = {"type": "array", "uniqueItems": True}
    await gateway.chat(schema(wide))
    error = await gateway.refused(CHAT, **schema(wide, strict=True))
    assert error["param"] == PLACE
    assert "uniqueItems" in error["message"]
    await gateway.chat(tools=function(parameters={"type": "object", "not": {}}))


async def test_a_grammar_that_takes_long_harms_no_neighbour(gateway: Gateway) -> None:
    gateway.say("x")
    numbers = [{"type": "integer", "multipleOf": number} for number in (9973, 9967, 9949, 9941)]
    bomb = asyncio.create_task(gateway.refused(CHAT, **schema({"allOf": numbers}, strict=True)))
    neighbours = [choice_of(gateway), choice_of(gateway, response_format={"type": "text"})]
    for choice in await asyncio.gather(*neighbours):
        assert choice.message.content == "x"
    assert not bomb.done()
    assert "too complex" in (await bomb)["message"]
