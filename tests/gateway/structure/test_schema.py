"""JSON schemas are bounded before they become grammars, and put as the compiler reads them."""

from typing import Any

import pytest

from optimist_gateway.structure.schema import (
    MAX_DEPTH,
    MAX_VALUES,
    check_json,
    readable,
)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def test_annotations_are_left_out_but_no_properties_of_their_names() -> None:
    schema = {
        "title": "Person",
        "type": "object",
        "properties": {
            "title": {"type": "string", "title": "Title", "examples": ["Dr"]},
            "description": {"anyOf": [{"type": "null", "default": None}]},
        },
        "additionalProperties": {"$comment": "any", "enum": ["title", {"title": "kept"}]},
    }
    assert readable(schema, is_lenient=False) == {
        "type": "object",
        "properties": {"title": {"type": "string"}, "description": {"anyOf": [{"type": "null"}]}},
        "additionalProperties": {"enum": ["title", {"title": "kept"}]},
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"enum": [float("nan")]}, "has nan, which is not a number of JSON"),
        ({"const": float("-inf")}, "has -inf, which"),
        (nested(MAX_DEPTH), "nested more than 100 deep"),
        ({"enum": list(range(MAX_VALUES))}, "more than 20000 values"),
    ],
)
def test_json_is_bounded(value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_json(value)


def test_integers_of_json_may_be_bounded() -> None:
    value = {"a": [1, 2.5, None], "b": {"c": "x", "d": -5}}
    check_json(value, range(-5, 2))
    check_json(nested(MAX_DEPTH - 2))
    with pytest.raises(ValueError, match="has an integer not in -4 to 1"):
        check_json(value, range(-4, 2))
    check_json([-(10**400)])
