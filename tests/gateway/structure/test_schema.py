"""Schemas before they become grammars."""

from typing import Any

import pytest

from optimist_gateway.core.error import FieldError, path_text
from optimist_gateway.structure.schema import (
    MAX_DEPTH,
    MAX_VALUES,
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
        "$defs": {"unused": {"type": "null"}},
        "additionalProperties": {"$comment": "any", "enum": ["title", {"title": "kept"}]},
    }
    assert plain_schema(schema) == {
        "type": "object",
        "properties": {"title": {"type": "string"}, "description": {"anyOf": [{"type": "null"}]}},
        "additionalProperties": {"enum": ["title", {"title": "kept"}]},
    }


def test_counts_are_whole_numbers_that_the_compiler_reads() -> None:
    schema = {"maxLength": 2**63 - 1, "minItems": 3.0, "enum": [{"maxLength": 2.5}]}
    assert plain_schema(schema) == schema | {"maxLength": 2**31 - 1, "minItems": 3}
    # The compiler refuses others.
    wrong = {"maxLength": -1, "minItems": 2.5, "minProperties": "3", "maxItems": True}
    assert plain_schema(wrong) == wrong


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"not": {}}, ".not"),
    ({"items": {"not": {"type": "null"}}}, ".items.not"),
    ({"properties": []}, ".properties"),
    ({"items": {"anyOf": {}}}, ".items.anyOf"),
    ({"properties": {"a": {"uniqueItems": True}}}, ".properties.a.uniqueItems"),
    ({"anyOf": [{}, {"if": {}}]}, ".anyOf[1].if"),
    ({"items": {"nullable": True}}, ".items.nullable"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "https://a.org/s"}}}, ".$defs.a.$ref"),
    ({"$ref": "file:///etc/passwd"}, ".$ref"),
    ({"anyOf": [{"$ref": "#/$defs/a"}]}, ".anyOf[0].$ref"),
    ({"items": {"$ref": "#name"}}, ".items.$ref"),
    ({"$ref": {}}, ".$ref"),
    ({"x-guidance": {"lenient": True}}, ".x-guidance"),
]


@pytest.mark.parametrize(("schema", "path"), REFUSED)
def test_what_is_not_followed_is_named(schema: dict[str, Any], path: str) -> None:
    with pytest.raises(FieldError) as caught:
        plain_schema(schema)
    assert path_text(caught.value.path) == path


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


def test_what_can_be_followed_is_kept() -> None:
    # A property may have the name of a keyword.
    named = {"properties": {"not": {"type": "string"}, "$ref": {}}, "enum": [{"if": 1}]}
    for schema in (named, {"minimum": 1, "exclusiveMinimum": True}, {"additionalItems": False}):
        assert plain_schema(schema) == schema
    # Keywords may ask for nothing, and nothing may be allowed.
    assert plain_schema({"uniqueItems": False, "nullable": False, "x-order": 3}) == {}
    assert plain_schema({"anyOf": [{"not": {}}, {}]}) == {"anyOf": [False, {}]}


INTEGER = {"type": "integer"}
PLACES: list[tuple[str, dict[str, Any]]] = [
    ("#/$defs/a", {"$defs": {"a": INTEGER}}),
    ("#/definitions/Record%3Ca%2Cb%3E", {"definitions": {"Record<a,b>": INTEGER}}),
    ("#/definitions/a~1b~0c", {"definitions": {"a/b~c": INTEGER}}),
    ("#/properties/a", {"properties": {"a": INTEGER}}),
    ("#/allOf/1/items", {"allOf": [{}, {"items": INTEGER}]}),
    ("#/components/schemas/a", {"components": {"schemas": {"a": INTEGER}}}),
]


@pytest.mark.parametrize(("reference", "place"), PLACES)
def test_what_is_referred_to_is_found(reference: str, place: dict[str, Any]) -> None:
    plain = plain_schema({"items": {"$ref": reference, "title": "A"}, **place})
    assert plain["items"] == {"$ref": "#/$defs/0"}
    assert plain["$defs"] == {"0": INTEGER}
    assert plain_schema(plain) == plain


def test_references_may_go_round_but_not_grow_without_bound() -> None:
    tree = {"items": {"$ref": "#"}}
    assert plain_schema(tree) == {
        "items": {"$ref": "#/$defs/0"},
        "$defs": {"0": {"items": {"$ref": "#/$defs/0"}}},
    }
    # Each refers to what those before it have in them.
    wide: dict[str, Any] = {"properties": {str(index): INTEGER for index in range(500)}}
    places = []
    for depth in range(1, MAX_DEPTH - 10):
        wide = {"items": wide}
        places.append({"$ref": "#" + "/items" * depth})
    wide["prefixItems"] = places
    check_json(wide)
    with pytest.raises(FieldError, match="what it refers to"):
        plain_schema(wide)
    assert plain_schema(wide, is_lenient=True) == {}
    assert plain_schema(wide | {"type": "object"}, is_lenient=True) == {"type": "object"}


def test_lenient_leaves_out_what_is_not_followed() -> None:
    schema = {
        "type": "array",
        "uniqueItems": True,
        "x-guidance": {"lenient": False},
        "items": {
            "not": {"type": "null"},
            "$ref": "https://example.org/s",
            "minProperties": 1,
            "properties": {"a": {"nullable": True, "type": "string", "minLength": 2}},
        },
    }
    assert plain_schema(schema, is_lenient=True) == {
        "type": "array",
        "items": {"properties": {"a": {"type": "string", "minLength": 2}}},
    }


def test_integers_of_json_may_be_bounded() -> None:
    value = {"a": [1, 2.5, None], "b": {"c": "x", "d": -5}}
    check_json(value, range(-5, 2))
    check_json(nested(MAX_DEPTH - 2))
    with pytest.raises(ValueError, match="has an integer not in -4 to 1"):
        check_json(value, range(-4, 2))
    check_json([-(10**400)])
