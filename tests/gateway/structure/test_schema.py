"""JSON schemas are bounded before they become grammars, and put as the compiler reads them."""

from typing import Any

import pytest

from optimist_gateway.structure.schema import (
    MAX_BOUND,
    MAX_DEPTH,
    MAX_VALUES,
    check_json,
    has_place,
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


def test_counts_are_whole_numbers_that_the_compiler_reads() -> None:
    schema = {"maxLength": 2**63 - 1, "minItems": 3.0, "enum": [{"maxLength": 2.5}]}
    expected = schema | {"maxLength": MAX_BOUND, "minItems": 3}
    assert readable(schema, is_lenient=False) == expected
    # The compiler refuses others.
    wrong = {"maxLength": -1, "minItems": 2.5, "minProperties": "3", "maxItems": True}
    assert readable(wrong, is_lenient=False) == wrong


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


def test_what_is_referred_to_is_found() -> None:
    root = {"definitions": {"Record<a,b>": {}, "a/b~c": {}}, "allOf": [{}, {"items": {}}]}
    for there in (
        "#",
        "#/definitions/Record%3Ca%2Cb%3E",
        "#/definitions/a~1b~0c",
        "#/allOf/1/items",
    ):
        assert has_place(root, there)
    nowhere: list[Any] = ["#name", "#/allOf/2", "https://example.org/x", "", {}, None]
    assert not any(has_place(root, one) for one in nowhere)
