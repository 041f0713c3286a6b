"""Which fields of a body exclude or need one another, for its JSON schema."""

from collections.abc import Callable, Sequence
from typing import Any

_NULL = {"type": "null"}


def exactly_one(names: Sequence[str]) -> Callable[[dict[str, Any]], None]:
    """Returns what makes a body's schema say that exactly one of some fields is not null."""

    def write(schema: dict[str, Any]) -> None:
        nulls: dict[str, Any] = dict.fromkeys(names, _NULL)
        _alternate(schema, [nulls | {name: _not_null(schema, name)} for name in names])

    return write


def _alternate(schema: dict[str, Any], forms: Sequence[dict[str, Any]]) -> None:
    """Turns the schema of an object into alternatives that differ in some properties.

    Args:
        schema: Of the object.
        forms: The properties of each; those that may not be null are required.
    """
    properties, required = schema.pop("properties"), schema.pop("required", [])
    texts = ("title", "description")
    kept: dict[str, Any] = {name: schema.pop(name) for name in texts if name in schema}
    alternatives = [
        {
            **schema,
            "properties": properties | form,
            "required": [*required, *(name for name, value in form.items() if value != _NULL)],
        }
        for form in forms
    ]
    schema.clear()
    schema.update(kept, anyOf=alternatives)


def _not_null(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the schema of a field without null."""
    field = schema["properties"][name]
    others = [one for one in field["anyOf"] if one != _NULL]
    rest = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
    return {**rest, **others[0]} if len(others) == 1 else {**rest, "anyOf": others}


def content_or_calls(schema: dict[str, Any]) -> None:
    """Makes the schema of an assistant's message say that it has content, calls, or both."""
    calls = {**_not_null(schema, "tool_calls"), "minItems": 1}
    _alternate(schema, [{"content": _not_null(schema, "content")}, {"tool_calls": calls}])
