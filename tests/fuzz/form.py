"""Random forms of answers: grammars of every kind, and what a complete answer of each is like."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema

from tests.chaos.load.grammar import AMBIGUOUS, DEEP, FAILING

_BOUNDS = (0, 1, 3, 12, 200, 3000, 20_000, 50_000)
_KEYS = ("name", "text", "日本", "a b", "n")
_WORDS = ("total", "a", "日本語", "🎉 yes", 'say "x"', "line\nline")


@dataclass(frozen=True)
class Form:
    """What an answer has to be like."""

    kind: str
    fields: dict[str, Any]
    """Of the request's body."""
    fits: Callable[[str], bool]
    """Tells whether a text is a whole answer."""
    is_chat: bool = False
    """Whether only chats have it."""


def draw_form(rng: random.Random) -> Form:
    """Returns any form."""
    return rng.choice([_object, _schema, _schema, _regex, _choice, _lark, _lark, _call])(rng)


def long_form() -> Form:
    """Returns a form whose answers are hundreds of tokens long, within bounds of thousands."""
    text: dict[str, Any] = {"type": "string", "minLength": 2400, "maxLength": 3000}
    return _of_schema("long", _object_of({"text": text}), is_chat=False)


def _object(rng: random.Random) -> Form:
    fields = {"response_format": {"type": "json_object"}}
    return Form("json_object", fields, _fits({"type": "object"}), is_chat=True)


def _schema(rng: random.Random) -> Form:
    schema = _object_of(
        {key: _value(rng, 2) for key in rng.sample(_KEYS, rng.randint(1, 3))},
        is_open=rng.random() < 0.2,
    )
    return _of_schema("schema", schema, is_chat=rng.random() < 0.5)


def _of_schema(kind: str, schema: dict[str, Any], *, is_chat: bool) -> Form:
    fields: dict[str, Any] = {"structured_outputs": {"json": schema}}
    if is_chat:
        form = {"name": "form", "schema": schema}
        fields = {"response_format": {"type": "json_schema", "json_schema": form}}
    return Form(kind, fields, _fits(schema), is_chat)


def _object_of(properties: dict[str, Any], *, is_open: bool = False) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | {"required": [*properties], "additionalProperties": is_open}


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_text, _text, _number, _plain] + depth * [_array, _nested]
    return rng.choice(kinds)(rng, depth - 1)


def _text(rng: random.Random, depth: int) -> dict[str, Any]:
    least, most = sorted((rng.choice(_BOUNDS[:5]), rng.choice(_BOUNDS[1:])))
    either: list[dict[str, Any]] = [
        {"maxLength": most},
        {"minLength": least, "maxLength": most},
        {"minLength": least},
    ]
    either += [{"pattern": f"^[a-z ]{{1,{most}}}$"}, {"enum": [*_WORDS]}, {"const": "日本 🎉"}]
    return {"type": "string"} | rng.choice(either)


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    either: list[dict[str, Any]] = [
        {"minimum": 0, "maximum": 120},
        {"multipleOf": 5},
        {"exclusiveMinimum": -3},
        {},
    ]
    return {"type": rng.choice(["integer", "number"])} | rng.choice(either)


def _plain(rng: random.Random, depth: int) -> dict[str, Any]:
    return rng.choice([{"type": "boolean"}, {"type": "null"}, {"anyOf": [{"type": "null"}, {}]}])


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least, most = sorted((rng.choice(_BOUNDS[:3]), rng.choice(_BOUNDS[1:])))
    return {"type": "array", "items": _value(rng, depth), "minItems": least, "maxItems": most}


def _nested(rng: random.Random, depth: int) -> dict[str, Any]:
    return _object_of({key: _value(rng, depth) for key in rng.sample(_KEYS, 2)})


def _regex(rng: random.Random) -> Form:
    most = rng.choice(_BOUNDS[1:])
    patterns = [f"[a-z_ ]{{1,{most}}}", f"(ab|[c-e]){{{most},{most + 9}}}\\.", '[^"]{2,40}!']
    patterns += [
        f"(\\w+, ){{1,{most}}}end",
        "日本?|🎉{1,3}",
        "def \\w{1,9}\\(\\w*\\):(\n    .{0,30}){1,4}",
    ]
    pattern = rng.choice(patterns)
    expression = re.compile(pattern)
    fields = {"structured_outputs": {"regex": pattern}}
    return Form("regex", fields, lambda text: expression.fullmatch(text) is not None)


def _choice(rng: random.Random) -> Form:
    texts = rng.sample(["a", "ab", "abc", "def main", "return total", *_WORDS], rng.randint(1, 5))
    return Form("choice", {"structured_outputs": {"choice": texts}}, lambda text: text in texts)


def _lark(rng: random.Random) -> Form:
    most = rng.choice(_BOUNDS[2:])
    grammars = {
        'start: WORD ("," WORD)+ "."\nWORD: /[a-z]{1,6}/': r"[a-z]{1,6}(,[a-z]{1,6})+\.",
        f"start: WORD{{1,{most}}}\nWORD: /[a-z]+ ?/": r"([a-z]+ ?)+",
        DEEP: r"[(\[\])a-z,]*",
        AMBIGUOUS: r"[a-z \n]+",
        FAILING: "",
    }
    grammar, pattern = rng.choice([*grammars.items()])
    fields = {"structured_outputs": {"grammar": grammar}}
    return Form("lark", fields, lambda text: re.fullmatch(pattern, text) is not None)


def _call(rng: random.Random) -> Form:
    schema = _object_of({key: _value(rng, 1) for key in rng.sample(_KEYS[:2], 2)})
    function = {"name": "save", "parameters": schema, "strict": True}
    fields: dict[str, Any] = {"tools": [{"type": "function", "function": function}]}
    fields |= {"tool_choice": "required", "parallel_tool_calls": False}
    fits = _fits(schema)
    # As `Choice.text` has a call: its name before its arguments.
    return Form("call", fields, lambda text: fits(text.removeprefix("save")), is_chat=True)


def _fits(schema: dict[str, Any]) -> Callable[[str], bool]:
    validator = jsonschema.Draft202012Validator(schema)

    def fits(text: str) -> bool:
        try:
            return validator.is_valid(json.loads(text))
        except json.JSONDecodeError:
            return False

    return fits
