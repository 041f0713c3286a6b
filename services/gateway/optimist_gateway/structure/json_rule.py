"""JSON that a schema describes, as an expression of llguidance's Lark dialect that compiles."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from optimist_gateway.structure.schema import (
    ANY_OBJECT,
    Node,
    any_value,
    children,
    plain_schema,
    with_schemas,
)
from optimist_gateway.structure.thinking_grammar import SPACE

MAX_WHITE_SPACE = 64
"""Most characters between two values of JSON: a model that loves white space ends all the same."""
_OPTION = "whitespace_pattern"
# A key that is not declared may be any text, in the one way to write it.
_SPELLED_ONCE = {"patternProperties": {"": True}, "additionalProperties": False}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def json_rule(plain: Mapping[str, Any], *, is_lenient: bool) -> str:
    """Returns the expression of a plain schema.

    Of overlapping members of `oneOf`, of unknown formats and of formats beside a pattern a lenient
    one lets everything through.
    """
    options: dict[str, Any] = {_OPTION: f"{SPACE}{{1,{MAX_WHITE_SPACE}}}"}
    if is_lenient:
        options["lenient"] = True
    schema = _spelled_once(plain, is_lenient=is_lenient)
    if schema is None:
        # No text has \u then, nor characters that are written in no other way.
        options["json_allowed_escapes"] = 'nrbtf\\"'
    return "%json " + json.dumps({"x-guidance": options, **(schema or plain)})


def allow_white_space(grammar: str) -> str:
    """Returns a grammar of an answer with as much white space in its JSON as the model likes."""
    bounded, free = (
        json.dumps({_OPTION: f"{SPACE}{number}"})[:-1]
        for number in (f"{{1,{MAX_WHITE_SPACE}}}", "+")
    )
    return grammar.replace(bounded, free)


def _spelled_once(plain: Mapping[str, Any], *, is_lenient: bool) -> dict[str, Any] | None:
    r"""Returns a schema in which no other key is a declared one, written with \u.

    llguidance tells keys apart by how they are written. None: that cannot be said in the schema,
    as patterns must not overlap, and control characters are written in several ways.
    """
    is_unclear = False

    def spelled(node: Node) -> Any:
        nonlocal is_unclear
        if not isinstance(node.value, dict):
            return node.value
        schema = {child.path[-1]: with_schemas(child, spelled) for child in children(node)}
        if is_lenient and "pattern" in schema:
            # No text may fit both: times of zod's patterns have no zone, and those of RFC 3339 do.
            schema.pop("format", None)
        names = schema.get("properties", ())
        if "patternProperties" in schema or any(map(_CONTROL.search, names)):
            is_unclear = True
        if names and schema.get("additionalProperties") is not False:
            kind = ANY_OBJECT if schema.get("type") == "object" else {}
            schema["allOf"] = [*schema.get("allOf", ()), {**kind, **_SPELLED_ONCE}]
        return schema

    schema: dict[str, Any] = spelled(Node((), plain))
    return None if is_unclear else schema


def loosened(schema: Mapping[str, Any], is_good: Callable[[str], bool]) -> Mapping[str, Any]:
    """Returns a schema without the keywords that keep it from being compiled.

    `is_good` tells whether an expression of a grammar can be.
    """
    plain = plain_schema(schema, is_lenient=True)
    # Many properties are alike.
    is_good = cache(is_good)
    ways = _looser(plain, is_good)
    good = (left for left in ways if is_good(json_rule(left, is_lenient=True)))
    return next(good, any_value(schema))


def _looser(
    plain: Mapping[str, Any], is_good: Callable[[str], bool]
) -> Iterator[Mapping[str, Any]]:
    """Yields a plain schema as it is, and then with ever less in it.

    In turn: without the keywords that cannot be compiled beside those before them; without what is
    beside references, as llguidance joins both, unless they recur.
    """
    yield plain
    # What is referred to is looked at by itself.
    named = dict.fromkeys(plain.get("$defs", ()), True)

    def compiles(schema: dict[str, Any]) -> bool:
        return is_good(json_rule({**schema, "$defs": named}, is_lenient=True))

    def loose(node: Node) -> Any:
        if not isinstance(node.value, dict) or compiles(node.value):
            return node.value if isinstance(node.value, dict | bool) else True
        kept: dict[str, Any] = {}
        for child in children(node):
            part = {str(child.path[-1]): with_schemas(child, loose)}
            if compiles(kept | part):
                kept |= part
        return kept

    left = loose(Node((), {name: value for name, value in plain.items() if name != "$defs"}))
    if named:
        left["$defs"] = {name: loose(Node((), one)) for name, one in plain["$defs"].items()}
    yield left
    yield _alone(Node((), left))


def _alone(node: Node) -> Any:
    if not isinstance(node.value, dict):
        return node.value
    if node.path and "$ref" in node.value:
        return {"$ref": node.value["$ref"]}
    return {child.path[-1]: with_schemas(child, _alone) for child in children(node)}
