"""JSON schemas as grammars take them: bounded, and without keywords that would be ignored."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from optimist_gateway.core.error import Path

# llguidance reads schemas to a depth of 128, the grammar's own object counted.
MAX_DEPTH = 100
MAX_VALUES = 20_000

_ONE = frozenset(
    {"additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "then"}
    | {"contentSchema", "propertyNames", "unevaluatedItems", "unevaluatedProperties"}
)
_SEVERAL = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
# They say nothing about what is valid; without them more tools fit into one grammar.
_ANNOTATIONS = frozenset(
    {"$comment", "default", "deprecated", "description", "example", "examples", "readOnly"}
    | {"title", "writeOnly"}
)
# Of these, llguidance refuses some and passes over the others.
_UNSUPPORTED = frozenset(
    {"$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "contains", "else"}
    | {"dependencies", "dependentRequired", "dependentSchemas", "disallow", "divisibleBy", "if"}
    | {"extends", "maxContains", "minContains", "not", "propertyNames", "then"}
    | {"unevaluatedItems", "unevaluatedProperties", "uniqueItems"}
)
_BOUNDS = frozenset(
    {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"}
)
MAX_BOUND = 2**31 - 1
"""Counts go no further, nor does any answer; llguidance reads no larger ones."""


@dataclass(eq=False)
class SchemaError(ValueError):
    """A schema that no grammar is made of."""

    path: Path
    """Where in the schema, such as `("anyOf", 1)`; empty for all of it."""
    message: str


class _Node(NamedTuple):
    """A value in a schema."""

    path: Path
    value: Any


def plain_schema(schema: Mapping[str, Any], *, is_lenient: bool = False) -> dict[str, Any]:
    """Returns a schema, which has passed `check_json`, without annotations.

    Raises:
        SchemaError: It has a keyword that no grammar can follow, unless `is_lenient` leaves it out.
    """
    plain: dict[str, Any] = _schema(_Node((), schema), is_lenient=is_lenient)
    return plain


def check_json(value: Any, max_integer: float = float("inf")) -> int:
    """Makes sure that a JSON value is of bounded size and depth and can be written as UTF-8.

    Returns how many values it is made of; raises SchemaError if it is not, or has an integer of a
    larger amount than `max_integer`.
    """
    level, num_values = [value], 0
    for _ in range(MAX_DEPTH):
        num_values += len(level)
        if num_values > MAX_VALUES:
            raise SchemaError((), f"has more than {MAX_VALUES} values")
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
            elif isinstance(one, list):
                below += one
            if (problem := _problem_of(one, max_integer)) is not None:
                raise SchemaError(_path_to(one, value), problem)
        if not below:
            return num_values
        level = below
    raise SchemaError((), f"is nested more than {MAX_DEPTH} deep")


def _problem_of(value: Any, max_integer: float) -> str | None:
    """Returns what is wrong with one value, whatever is in it; None if nothing is."""
    if isinstance(value, float) and not abs(value) < float("inf"):
        return "is not a number of JSON"
    if isinstance(value, int) and abs(value) > max_integer:
        return f"must be at most {max_integer}"
    text = "".join(value) if isinstance(value, dict) else value
    try:
        if isinstance(text, str):
            text.encode()
    except UnicodeEncodeError:
        return "must be Unicode text without halves of surrogate pairs"
    return None


def _path_to(wanted: Any, value: Any) -> Path:
    """Returns where in a value another one is."""
    waiting = [_Node((), value)]
    while waiting:
        node = waiting.pop()
        if node.value is wanted:
            return node.path
        waiting += _children(node)
    raise AssertionError("it is not in there")


def _children(node: _Node) -> Iterator[_Node]:
    named: Iterable[tuple[str | int, Any]] = ()
    if isinstance(node.value, dict):
        named = node.value.items()
    elif isinstance(node.value, list):
        named = enumerate(node.value)
    return (_Node((*node.path, name), value) for name, value in named)


def _schema(node: _Node, *, is_lenient: bool) -> Any:
    """Returns what stands where a schema may stand; what is none is left to the compiler."""
    if not isinstance(node.value, dict):
        return node.value
    kept: dict[str, Any] = {}
    for child in _children(node):
        name = str(child.path[-1])
        if (problem := _problem(name, child.value)) is not None:
            if not is_lenient or name == "$ref":
                raise SchemaError(child.path, problem)
        elif name not in _ANNOTATIONS:
            kept[name] = _value(name, child, is_lenient=is_lenient)
    return kept


def _value(name: str, node: _Node, *, is_lenient: bool) -> Any:
    """Returns the value of a keyword, with the schemas in it."""
    if name in _SEVERAL and isinstance(node.value, list):
        return [_schema(child, is_lenient=is_lenient) for child in _children(node)]
    if name in _NAMED and isinstance(node.value, dict):
        schemas = zip(node.value, _children(node), strict=True)
        return {key: _schema(child, is_lenient=is_lenient) for key, child in schemas}
    if name in _ONE:
        return _schema(node, is_lenient=is_lenient)
    return _bound(node) if name in _BOUNDS else node.value


def _bound(node: _Node) -> int:
    """Returns a number of things; in JSON schemas 3.0 is one, too."""
    value = node.value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SchemaError(node.path, f"must be a whole number, at least 0, not {node.value!r:.60}")
    return min(value, MAX_BOUND)


def _problem(name: str, value: Any) -> str | None:
    """Returns why a keyword cannot be followed, or None."""
    if name in _UNSUPPORTED and not (name == "uniqueItems" and value is False):
        return f"the keyword {name} is not supported"
    if name == "x-guidance":
        return "is reserved for the server"
    if name == "nullable" and value is True:
        return "the keyword nullable is not supported; allow the type null"
    if name in ("exclusiveMaximum", "exclusiveMinimum") and isinstance(value, bool):
        return "must be a number, as in drafts from 6 on"
    if name == "$ref" and isinstance(value, str) and not value.startswith("#"):
        return "may only refer to places in the same schema (#...)"
    return None
