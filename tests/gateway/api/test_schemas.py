"""Schemas as libraries make them, for tools and forms: what is not strict guides as far as it can.

The cases are public reports and their like.
"""

from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from tests.gateway.harness import CHAT, RESPONSES, Fields, Gateway
from tests.gateway.structure.test_grammar import Follows


@pytest.fixture(scope="module")
def follows(backend: Backend) -> Follows:
    return Follows(backend)


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def text(**keywords: Any) -> dict[str, Any]:
    return obj(d={"type": "string", **keywords}, n={"type": "integer"})


def anything(**keywords: Any) -> dict[str, Any]:
    return obj(d=keywords, n={"type": "integer"})


STRINGS, NUMBERS = {"type": "array", "items": {"type": "string"}}, {"type": "number"}
DURATION = (
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
)
EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]"
    r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)
VALUES = {"zod's email": '"a@example.org"', "zod's duration": '"P1W"', "a step of zero": "7.5"}
"""What `d` may be, if not any text."""
# What is said of `d` is left out, at least in part; `n` is a whole number all the same.
TEXTS: dict[str, dict[str, Any]] = {
    # codefuturist/email-mcp#72, nspady/google-calendar-mcp#183, vercel/ai#21037
    "look-ahead": text(pattern="^(?!a)b$"),
    "zod's email": text(format="email", pattern=EMAIL),
    "zod's duration": text(format="duration", pattern=DURATION),
    "back-reference": text(pattern=r"(a|b)\1"),
    "word boundary": text(pattern=r"\bb\b"),
    "no regex": text(pattern="*("),
    "a pattern that is no text": text(pattern={"source": "a"}),
    # pydantic/pydantic-ai#5508, VedalAI/neuro-sdk#60, vllm-project/vllm#42904
    "format path": text(format="path"),
    "format that is no text": text(format=["date"]),
    "lengths as texts": text(minLength="3", maxLength="x"),
    "an enum of null": text(enum=None),
    "a guess of types": anything(type="str"),
    "no type": anything(type=None),
    "an unknown type beside others": anything(type=["string", "file"]),
    "if": anything(**{"if": {"type": "string"}, "then": {"minLength": 2}, "else": False}),
    "not": anything(**{"not": {"type": "null"}}),
    "dependentRequired": {**text(), "dependentRequired": {"d": ["n"]}},
    # LangChain: dict of an enumeration
    "propertyNames": {**text(), "propertyNames": {"enum": ["d", "n"]}},
    "unevaluatedProperties": {**text(), "unevaluatedProperties": False},
    "minProperties": {**text(), "minProperties": 1, "maxProperties": 5},
    "nullable": text(nullable=True),
    "the server's own options": {**text(), "x-guidance": {"lenient": False, "more": 1}},
    "extensions": {**text(), "x-order": 1, "ui:widget": "text", "$vocabulary": {}},
    "another draft": {**text(), "$schema": "http://json-schema.org/draft-03/schema#", "id": "/a"},
    "elsewhere": anything(**{"$ref": "https://example.org/schema.json"}),
    "nothing there": anything(**{"$ref": "#/$defs/Missing"}),
    "required as a text": {**text(), "required": "n"},
    # schemars' u64 and i64
    "bounds of 64 bits": anything(
        anyOf=[
            {"type": "string"},
            {"type": "integer", "format": "uint64", "minimum": 0, "maximum": 2**64 - 1},
            {"type": "integer", "format": "int64", "minimum": -(2**63)},
        ]
    ),
    "no list of anyOf": anything(anyOf={"type": "string"}),
    "overlapping patterns": {**text(), "patternProperties": {"^x": {}, "^x_": {"type": "null"}}},
    "a pattern of names": {**text(), "patternProperties": {"^(?!x)": {}}},
    "unsatisfiable": {**anything(allOf=[{"type": "string"}, {"type": "null"}]), "required": ["d"]},
    "a step of zero": anything(type="number", multipleOf=0),
}


def form(schema: Any, **parts: Any) -> Fields:
    described = {"name": "a", "schema": schema, **parts}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def tool(schema: Any, name: str = "f", **parts: Any) -> Fields:
    return {"type": "function", "function": {"name": name, "parameters": schema, **parts}}


def grammar(gateway: Gateway) -> str:
    return gateway.adds[-1].sampling.grammar


def called(name: str, arguments: str) -> str:
    return f'{{"tool_calls": [{{"name": "{name}", "arguments": {arguments}}}]}}'


@pytest.mark.parametrize("name", TEXTS)
async def test_what_is_not_strict_guides_as_far_as_it_can(
    gateway: Gateway, follows: Follows, name: str
) -> None:
    schema, value = TEXTS[name], VALUES.get(name, '"bbb"')
    text_format = {"type": "json_schema", "name": "a", "schema": schema}
    await gateway.answer(CHAT, **form(schema))
    chat = grammar(gateway)
    assert follows(chat, f'{{"d": {value}, "n": 3}}')
    assert not follows(chat, f'{{"d": {value}, "n": "3"}}')
    await gateway.answer(CHAT, **form(schema, strict=False))
    await gateway.answer(RESPONSES, text={"format": text_format | {"strict": None}})
    assert {add.sampling.grammar for add in gateway.adds} == {chat}
    tools = [tool(schema), tool(obj(m={"type": "boolean"}), "g", strict=True)]
    await gateway.answer(CHAT, tools=tools, tool_choice="required")
    assert follows(grammar(gateway), called("f", f'{{"d": {value}, "n": 3}}'))
    assert not follows(grammar(gateway), called("f", f'{{"d": {value}, "n": null}}'))
    assert not follows(grammar(gateway), called("g", '{"m": 1}'))


NEXT = {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "default": None}
BESIDE = obj(next={"$ref": "#/$defs/Node", "minProperties": 1}, value={"type": "integer"})
# Schema, what it allows, and what it does not.
MORE: dict[str, tuple[dict[str, Any], str, str]] = {
    "set[str]": (
        {"type": "array", "uniqueItems": True, "items": {"type": "string"}},
        '["a"]',
        "[1]",
    ),
    "dict[Enum, float]": (
        {"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": NUMBERS},
        '{"a": 1.5}',
        '{"a": "x"}',
    ),
    "bounds of draft 4": (
        obj(n={"type": "integer", "minimum": 0, "exclusiveMinimum": True}),
        '{"n": 1}',
        '{"n": 0}',
    ),
    "overlapping oneOf": ({"oneOf": [STRINGS, {"type": "array"}, NUMBERS]}, "[1]", '"a"'),
    "zod's never": (obj(a={"not": {}}, n=NUMBERS), '{"n": 1}', '{"a": 1}'),
    "zod's optional": (
        obj(a={"anyOf": [{"not": {}}, {"type": "string"}]}),
        '{"a": "x"}',
        '{"a": 1}',
    ),
    "a closed object of zod": (
        {**obj(n=NUMBERS), "additionalProperties": {"not": {}}},
        "{}",
        '{"a": 1}',
    ),
    "a list of itself": (
        {"$ref": "#/$defs/Node", "$defs": {"Node": obj(next=NEXT, value=NUMBERS)}},
        '{"next": {"next": null, "value": 1}, "value": 2}',
        '{"next": {"next": 1}}',
    ),
    "a reference that recurs, with siblings": (
        {"$ref": "#/$defs/Node", "$defs": {"Node": BESIDE}},
        '{"next": {"value": 1}, "value": 2}',
        '{"next": {"value": "x"}}',
    ),
    "the whole schema within": (
        obj(child={"$ref": "#", "description": "More."}, n=NUMBERS),
        '{"child": {"child": {"n": 1}}}',
        '{"child": {"child": {"n": "1"}}}',
    ),
    "a reference with siblings": (
        {**obj(a={"$ref": "#/$defs/A", "maxLength": 2}), "$defs": {"A": {"type": "string"}}},
        '{"a": "ab"}',
        '{"a": "abc"}',
    ),
    "a reference to itself": (
        {**anything(**{"$ref": "#/$defs/a"}), "$defs": {"a": {"$ref": "#/$defs/a"}}},
        '{"n": 1}',
        '{"n": "x"}',
    ),
    "zod's time": (
        text(format="time", pattern=r"^(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?$"),
        '{"d": "12:30"}',
        '{"d": "25:30"}',
    ),
    "pydantic's decimal": (
        obj(
            d={"anyOf": [NUMBERS, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]}
        ),
        '{"d": "1.5"}',
        '{"d": null}',
    ),
    "a list of two schemas": (
        {"allOf": [obj(a=STRINGS), obj(n=NUMBERS)]},
        '{"n": 1}',
        '{"n": "x"}',
    ),
}


@pytest.mark.parametrize("name", MORE)
async def test_what_can_be_followed_is(gateway: Gateway, follows: Follows, name: str) -> None:
    schema, good, bad = MORE[name]
    await gateway.answer(CHAT, **form(schema))
    assert follows(grammar(gateway), good)
    assert not follows(grammar(gateway), bad)


async def test_a_parameter_that_is_no_object_is_one(gateway: Gateway, follows: Follows) -> None:
    for kind in (["object", "null"], "None", None, "array", ["object"], "OBJECT"):
        tools = [tool(obj(n=NUMBERS) | {"type": kind})]
        await gateway.answer(CHAT, tools=tools, tool_choice="required")
        assert follows(grammar(gateway), called("f", '{"n": 1}'))
        assert not follows(grammar(gateway), called("f", '{"n": "x"}'))
        assert not follows(grammar(gateway), called("f", "null"))


# What strict refuses, and what is said.
STRICT: list[tuple[dict[str, Any], str]] = [
    (text(pattern="^(?!a)b$"), "look-around"),
    (text(format="path"), "Unknown format: path"),
    (obj(d={"type": "array", "uniqueItems": True}), "uniqueItems"),
    (obj(d={"not": {"type": "null"}}), "not"),
    (obj(d={"oneOf": [{}, {"type": "null"}]}), "oneOf"),
    (obj(d={"$ref": "https://example.org"}), "https://example.org"),
    (obj(d={"$ref": "#/$defs/a"}), "does not exist"),
    (text(minLength="3"), "positive integer for 'minLength'"),
    (text(maxLength=2.5), "positive integer for 'maxLength'"),
    ({**text(), "required": "n"}, "required"),
    ({**text(), "properties": None}, "properties must be an object"),
    ({**text(), "minProperties": 1}, "min/maxProperties"),
    ({"$ref": "#/$defs/Node", "$defs": {"Node": BESIDE}}, "circular"),
]


@pytest.mark.parametrize(("schema", "words"), STRICT, ids=lambda one: str(one)[:40])
async def test_strict_stays_strict_and_names_the_tool(
    gateway: Gateway, schema: dict[str, Any], words: str
) -> None:
    error = await gateway.refused(CHAT, **form(schema, strict=True))
    assert error["param"] == "response_format.json_schema.schema"
    assert words in error["message"]
    tools = [tool(obj(), "first"), tool(schema, "second", strict=True), tool(obj(), "third")]
    error = await gateway.refused(CHAT, tools=tools)
    assert error["param"] == "tools[1].function.parameters"
    assert ": second: " in error["message"]
    assert words in error["message"]
    error = await gateway.refused(CHAT, structured_outputs={"json": schema})
    assert error["param"] == "structured_outputs.json"
