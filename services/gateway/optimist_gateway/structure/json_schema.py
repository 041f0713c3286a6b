"""JSON schemas, bounded, as expressions of llguidance's Lark dialect that compile."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import isfinite
from typing import Any
from urllib.parse import unquote

from optimist_gateway.structure.tool_format import SPACE

# llguidance reads schemas to a depth of 128, the grammar's own object counted.
MAX_DEPTH = 100
MAX_VALUES = 20_000
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

# Of which keywords the value is a schema, or has several.
_ONE = frozenset({"additionalItems", "additionalProperties", "items"})
_SEVERAL = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_NAMED = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_COUNTED = frozenset({"maxProperties", "minProperties"})
_BOUNDS = _COUNTED | {"maxItems", "maxLength", "minItems", "minLength"}
_ANNOTATIONS = frozenset(
    {"$comment", "$id", "$schema", "default", "deprecated", "description", "examples", "id"}
    | {"readOnly", "title", "writeOnly"}
)
MAX_BOUND = 2**31 - 1
"""Counts go no further, nor does any answer; llguidance reads no larger ones."""


def any_value(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what is left of a schema of which nothing can be followed."""
    is_object = schema.get("type") == "object" or "properties" in schema
    return ANY_OBJECT if is_object else {}


def check_json(value: Any, integers: range | None = None) -> None:
    """Makes sure that a JSON value is of bounded size and depth, and all its numbers are of JSON.

    Raises ValueError if it is not, or has other integers.
    """
    level, num_values = [value], 0
    for _ in range(MAX_DEPTH):
        num_values += len(level)
        if num_values > MAX_VALUES:
            raise ValueError(f"has more than {MAX_VALUES} values")
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
            elif isinstance(one, list):
                below += one
            elif isinstance(one, float) and not isfinite(one):
                raise ValueError(f"has {one}, which is not a number of JSON")
            elif isinstance(one, int) and integers is not None and one not in integers:
                raise ValueError(f"has an integer not in {integers.start} to {integers.stop - 1}")
        if not below:
            return
        level = below
    raise ValueError(f"is nested more than {MAX_DEPTH} deep")


def with_schemas(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Returns a schema with the schemas in it changed, each as a whole."""

    def changed(name: str, value: Any) -> Any:
        if name in _NAMED and isinstance(value, dict):
            return {key: change(one) for key, one in value.items()}
        if name in _SEVERAL and isinstance(value, list):
            return [change(one) for one in value]
        return change(value) if name in _ONE else value

    return {name: changed(name, value) for name, value in schema.items()}


def readable(schema: Any, *, is_lenient: bool) -> Any:
    """Returns a schema without annotations, whose counts and empty schemas llguidance reads."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("not") in ({}, True):
        return False
    given = {name: one for name, one in schema.items() if name not in _ANNOTATIONS}
    kept = with_schemas(given, lambda one: readable(one, is_lenient=is_lenient))
    for name in _BOUNDS & kept.keys():
        count = kept[name]
        if is_lenient and name in _COUNTED and "properties" in kept:
            # It would count the other properties alone.
            del kept[name]
        elif type(count) in (int, float) and count % 1 == 0:
            # In JSON schemas 3.0 is a whole number, too.
            kept[name] = min(int(count), MAX_BOUND)
    return kept


def has_place(root: Mapping[str, Any], reference: Any) -> bool:
    """Returns whether what a reference refers to is in the schema."""
    if not isinstance(reference, str) or reference[:2] not in ("#", "#/"):
        return False
    value: Any = root
    for part in unquote(reference).split("/")[1:]:
        name: str | int = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and part.isdecimal():
            name = int(part)
        try:
            value = value[name]
        except (LookupError, TypeError):
            return False
    return True


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
