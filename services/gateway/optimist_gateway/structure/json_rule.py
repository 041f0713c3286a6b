"""JSON that a schema describes, as an expression of llguidance's Lark dialect that compiles."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from optimist_gateway.structure.schema import (
    ANY_OBJECT,
    any_value,
    has_place,
    readable,
    with_schemas,
)
from optimist_gateway.structure.thinking_grammar import SPACE

MAX_WHITE_SPACE = 64
"""Most characters between two values of JSON: a model that loves white space ends all the same."""
_OPTION = "whitespace_pattern"
# A key that is not declared may be any text, in the one way to write it.
_SPELLED_ONCE = {"patternProperties": {"": True}, "additionalProperties": False}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DEFINED = re.compile(r"#(/(\$defs|definitions)/[^/]*)?")


def json_rule(schema: Mapping[str, Any], *, is_lenient: bool) -> str:
    """Returns the expression of a schema.

    Of keywords that no grammar follows, of overlapping members of `oneOf`, of unknown formats and
    of formats beside a pattern a lenient one lets everything through.
    """
    options: dict[str, Any] = {_OPTION: f"{SPACE}{{1,{MAX_WHITE_SPACE}}}"}
    if is_lenient:
        options["lenient"] = True
    given = readable(dict(schema), is_lenient=is_lenient) or {}
    spelled = _spelled_once(given, is_lenient=is_lenient)
    if spelled is None:
        # No text has \u then, nor characters that are written in no other way.
        options["json_allowed_escapes"] = 'nrbtf\\"'
    # The options are the server's.
    return "%json " + json.dumps({**(spelled or given), "x-guidance": options})


def allow_white_space(grammar: str) -> str:
    """Returns a grammar of an answer with as much white space in its JSON as the model likes."""
    bounded, free = (
        json.dumps({_OPTION: f"{SPACE}{number}"})[:-1]
        for number in (f"{{1,{MAX_WHITE_SPACE}}}", "+")
    )
    return grammar.replace(bounded, free)


def _spelled_once(given: Mapping[str, Any], *, is_lenient: bool) -> dict[str, Any] | None:
    r"""Returns a schema in which no other key is a declared one, written with \u.

    llguidance tells keys apart by how they are written. None: that cannot be said in the schema,
    as patterns must not overlap, and control characters are written in several ways.
    """
    is_unclear = False

    def spelled(value: Any) -> Any:
        nonlocal is_unclear
        if not isinstance(value, dict):
            return value
        schema = with_schemas(value, spelled)
        if is_lenient and "pattern" in schema:
            # No text may fit both: times of zod's patterns have no zone, and those of RFC 3339 do.
            schema.pop("format", None)
        names, beside = schema.get("properties"), schema.get("allOf", [])
        names = names if isinstance(names, dict) else {}
        is_unclear |= "patternProperties" in schema or any(map(_CONTROL.search, names))
        is_unclear |= _DEFINED.fullmatch(str(schema.get("$ref", "#"))) is None
        if names and schema.get("additionalProperties") is not False and isinstance(beside, list):
            kind = ANY_OBJECT if schema.get("type") == "object" else {}
            schema["allOf"] = [*beside, {**kind, **_SPELLED_ONCE}]
        return schema

    schema: dict[str, Any] = spelled(given)
    return None if is_unclear else schema


def loosened(schema: Mapping[str, Any], is_good: Callable[[str], bool]) -> Mapping[str, Any]:
    """Returns a schema without the keywords that keep it from being compiled.

    `is_good` tells whether an expression of a grammar can be.
    """
    # Many properties are alike.
    is_good = cache(is_good)
    good = (left for left in _looser(schema, is_good) if is_good(json_rule(left, is_lenient=True)))
    return next(good, any_value(schema))


def _looser(root: Mapping[str, Any], is_good: Callable[[str], bool]) -> Iterator[Mapping[str, Any]]:
    """Yields a schema with ever less in it.

    In turn: without the keywords that cannot be compiled beside those before them; without what is
    beside references, as llguidance joins both, unless they recur.
    """

    def compiles(schema: dict[str, Any]) -> bool:
        # What is referred to is looked at by itself.
        return is_good(json_rule(_unreferred(schema), is_lenient=True))

    def loose(value: Any) -> Any:
        if not isinstance(value, dict):
            return value if isinstance(value, bool) else True
        kept: dict[str, Any] = {}
        for name, one in with_schemas(value, loose).items():
            if has_place(root, one) if name == "$ref" else compiles({**kept, name: one}):
                kept[name] = one
        return kept

    left = loose(dict(root))
    yield left
    yield with_schemas(left, _alone)


def _unreferred(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    left = with_schemas(schema, _unreferred)
    left.pop("$ref", None)
    return left


def _alone(schema: Any) -> Any:
    if isinstance(schema, dict) and "$ref" in schema:
        return {"$ref": schema["$ref"]}
    return with_schemas(schema, _alone) if isinstance(schema, dict) else schema
