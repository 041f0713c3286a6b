"""Schemas before they become grammars."""

from collections.abc import Callable
from typing import Any

import pytest

from optimist_gateway.core.error import path_text
from optimist_gateway.structure.schema import (
    MAX_DEPTH,
    MAX_VALUES,
    SchemaError,
    check_json,
    plain_schema,
)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def test_annotations_are_left_out_but_no_properties_of_their_names() -> None:
    schema = {
        "title": "Person",
        "description": "Somebody",
        "type": "object",
        "properties": {
            "title": {"type": "string", "title": "Title", "examples": ["Dr"]},
            "description": {"anyOf": [{"type": "null", "default": None}]},
        },
        "$defs": {"default": {"enum": ["title", {"title": "kept"}]}},
        "additionalProperties": {"$comment": "any", "type": "integer"},
    }
    assert plain_schema(schema) == {
        "type": "object",
        "properties": {"title": {"type": "string"}, "description": {"anyOf": [{"type": "null"}]}},
        "$defs": {"default": {"enum": ["title", {"title": "kept"}]}},
        "additionalProperties": {"type": "integer"},
    }


def test_counts_are_whole_numbers_that_the_compiler_reads() -> None:
    schema = {"maxLength": 2**63 - 1, "minItems": 3.0, "enum": [{"maxLength": 2.5}]}
    assert plain_schema(schema) == schema | {"maxLength": 2**31 - 1, "minItems": 3}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"not": {}}, ".not"),
    ({"properties": {"a": {"uniqueItems": True}}}, ".properties.a.uniqueItems"),
    ({"anyOf": [{}, {"if": {}}]}, ".anyOf[1].if"),
    ({"items": {"nullable": True}}, ".items.nullable"),
    ({"minimum": 1, "exclusiveMinimum": True}, ".exclusiveMinimum"),
    ({"$defs": {"a": {"$ref": "https://example.org/s"}}}, ".$defs.a.$ref"),
    ({"$ref": "file:///etc/passwd"}, ".$ref"),
    ({"x-guidance": {"lenient": True}}, ".x-guidance"),
    ({"properties": {"a": {"maxLength": -1}}}, ".properties.a.maxLength"),
    ({"items": {"minItems": 2.5}}, ".items.minItems"),
    ({"minProperties": "3"}, ".minProperties"),
    ({"anyOf": [{"maxItems": True}]}, ".anyOf[0].maxItems"),
]
UNBOUNDED: list[tuple[dict[str, Any], str]] = [
    ({"enum": [float("nan")]}, ".enum[0]"),
    ({"const": "\ud800"}, ".const"),
    ({"properties": {"\ud800": {}}}, ".properties"),
    (nested(MAX_DEPTH), ""),
    ({"enum": list(range(MAX_VALUES))}, ""),
]


@pytest.mark.parametrize(
    ("check", "schema", "path"),
    [(plain_schema, *one) for one in REFUSED] + [(check_json, *one) for one in UNBOUNDED],
)
def test_what_is_not_followed_is_named(
    check: Callable[[Any], object], schema: dict[str, Any], path: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        check(schema)
    assert path_text(caught.value.path) == path


def test_what_can_be_followed_is_kept() -> None:
    # A property may have the name of a keyword, and keywords may ask for nothing.
    named = {"properties": {"not": {"type": "string"}, "$ref": {}}, "enum": [{"if": 1}]}
    for schema in (named, {"uniqueItems": False, "nullable": False, "exclusiveMinimum": 3}):
        assert plain_schema(schema) == schema


def test_lenient_leaves_keywords_out_but_refers_nowhere_else() -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"not": {}, "type": "string"}}
    assert plain_schema(schema, is_lenient=True) == {"type": "array", "items": {"type": "string"}}
    with pytest.raises(SchemaError, match="same schema"):
        plain_schema({"$ref": "https://example.org/s"}, is_lenient=True)


def test_json_is_counted_and_its_integers_may_be_bounded() -> None:
    value = {"a": [1, 2.5, None], "b": {"c": "x", "d": -5}}
    assert check_json(value) == 8
    assert check_json(value, 5) == 8
    assert check_json(nested(MAX_DEPTH - 2)) == 2 * MAX_DEPTH - 2
    with pytest.raises(SchemaError, match="at most 4") as caught:
        check_json(value, 4)
    assert path_text(caught.value.path) == ".b.d"
