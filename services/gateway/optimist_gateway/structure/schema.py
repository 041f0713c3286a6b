"""JSON schemas as grammars take them: bounded, and without keywords that would be ignored."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple
from urllib.parse import unquote

from optimist_gateway.core.error import FieldError, Path

# llguidance reads schemas to a depth of 128, the grammar's own object counted.
MAX_DEPTH = 100
MAX_VALUES = 20_000
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

# Of which keywords the value is a schema, or has several.
_ONE = frozenset({"additionalItems", "additionalProperties", "items"})
_SEVERAL = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_NAMED = frozenset({"$defs", "patternProperties", "properties"})
_COUNTED = frozenset({"maxProperties", "minProperties"})
_BOUNDS = _COUNTED | {"maxItems", "maxLength", "minItems", "minLength"}
# All others say nothing about what is valid, or are not supported.
_FOLLOWED = (
    (_ONE | _SEVERAL | _NAMED | _BOUNDS)
    | {"const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maximum", "minimum"}
    | {"multipleOf", "pattern", "required", "type"}
) - {"$defs"}
_UNSUPPORTED = frozenset(
    {"$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "contains", "else"}
    | {"dependencies", "dependentRequired", "dependentSchemas", "disallow", "divisibleBy", "if"}
    | {"extends", "maxContains", "minContains", "not", "propertyNames", "then"}
    | {"unevaluatedItems", "unevaluatedProperties", "uniqueItems"}
)
MAX_BOUND = 2**31 - 1
"""Counts go no further, nor does any answer; llguidance reads no larger ones."""


class Node(NamedTuple):
    """A value in a schema."""

    path: Path
    value: Any


def any_value(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what is left of a schema of which nothing can be followed."""
    is_object = schema.get("type") == "object" or "properties" in schema
    return ANY_OBJECT if is_object else {}


def plain_schema(schema: Mapping[str, Any], *, is_lenient: bool = False) -> Mapping[str, Any]:
    """Returns a schema, which has passed `check_json`, of what a grammar can follow.

    What it refers to is in `$defs`. A schema that is plain stays as it is.

    Raises:
        FieldError: With what it refers to it is too large, or it has a keyword that no grammar can
            follow, unless `is_lenient` leaves that out. The path is where in the schema.
    """
    try:
        return _Plain(schema, is_lenient=is_lenient).of_root()
    except FieldError:
        if is_lenient:
            return any_value(schema)
        raise


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


def children(node: Node) -> Iterator[Node]:
    """Yields the values in a value."""
    named: Iterable[tuple[str | int, Any]] = ()
    if isinstance(node.value, dict):
        named = node.value.items()
    elif isinstance(node.value, list):
        named = enumerate(node.value)
    return (Node((*node.path, name), value) for name, value in named)


def with_schemas(node: Node, change: Callable[[Node], Any]) -> Any:
    """Returns the value of a keyword, the last name of the path, with the schemas in it changed."""
    name = node.path[-1]
    if name in _SEVERAL and isinstance(node.value, list):
        return [change(child) for child in children(node)]
    if name in _NAMED and isinstance(node.value, dict):
        return {child.path[-1]: change(child) for child in children(node)}
    if name in _BOUNDS and type(node.value) in (int, float) and node.value % 1 == 0:
        # In JSON schemas 3.0 is a whole number, too.
        return min(int(node.value), MAX_BOUND)
    return change(node) if name in _ONE else node.value


class _Plain:
    """Makes a schema plain, and what it refers to."""

    def __init__(self, root: Mapping[str, Any], *, is_lenient: bool) -> None:
        self._root, self._is_lenient = root, is_lenient
        self._names: dict[Path, str] = {}
        self._waiting: list[tuple[str, Node]] = []
        self._num_keywords = 0

    def of_root(self) -> dict[str, Any]:
        plain: dict[str, Any] = self._schema(Node((), self._root))
        named: dict[str, Any] = {}
        while self._waiting:
            name, node = self._waiting.pop()
            named[name] = self._schema(node)
        return {**plain, "$defs": named} if named else plain

    def _schema(self, node: Node) -> Any:
        """Returns what stands where a schema may stand; what is none is left to the compiler."""
        if not isinstance(node.value, dict):
            return node.value
        if node.path and node.value.get("not") in ({}, True):
            return False
        self._num_keywords += len(node.value)
        if self._num_keywords > MAX_VALUES:
            raise FieldError((), f"has more than {MAX_VALUES} values with what it refers to")
        kept: dict[str, Any] = {}
        for child in children(node):
            name = str(child.path[-1])
            if (problem := _problem(name, child.value)) is not None:
                if not self._is_lenient:
                    raise FieldError(child.path, problem)
            elif name == "$ref":
                kept |= self._reference(child)
            elif name in _FOLLOWED:
                kept[name] = with_schemas(child, self._schema)
        if self._is_lenient and "properties" in kept:
            # llguidance would count the other properties alone.
            kept = {name: value for name, value in kept.items() if name not in _COUNTED}
        return kept

    def _reference(self, node: Node) -> dict[str, str]:
        """Returns a reference, or none if it is lenient and there is nothing it refers to."""
        place = _place(self._root, node.value)
        if place is None:
            if self._is_lenient:
                return {}
            problem = "may only refer to places in the same schema (#/...), which have to be there"
            raise FieldError(node.path, problem)
        name = self._names.get(place.path)
        if name is None:
            name = self._names[place.path] = str(len(self._names))
            self._waiting.append((name, place))
        return {"$ref": f"#/$defs/{name}"}


def _place(root: Mapping[str, Any], reference: Any) -> Node | None:
    """Returns what a reference refers to, None if it is not in the schema."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    pointer = unquote(reference[1:])
    if pointer[:1] not in ("", "/"):
        return None
    node = Node((), root)
    for part in pointer.split("/")[1:] if pointer != "/" else ():
        name: str | int = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node.value, list) and part.isdecimal():
            name = int(part)
        try:
            node = Node((*node.path, name), node.value[name])
        except (LookupError, TypeError):
            return None
    return node


def _problem(name: str, value: Any) -> str | None:
    """Returns why a keyword cannot be followed, or None."""
    if name in _UNSUPPORTED and not (name == "uniqueItems" and value is False):
        return f"the keyword {name} is not supported"
    if name == "x-guidance":
        return "is reserved for the server"
    if name == "nullable" and value is True:
        return "the keyword nullable is not supported; allow the type null"
    if name in _NAMED and not isinstance(value, dict):
        return "must be an object"
    if name in _SEVERAL - _ONE and not isinstance(value, list):
        return "must be a list"
    return None
