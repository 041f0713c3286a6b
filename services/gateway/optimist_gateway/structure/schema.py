"""JSON schemas on their way to llguidance: bounded, and put so that it reads them as they mean."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any
from urllib.parse import unquote

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
