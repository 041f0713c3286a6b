"""JSON schemas are bounded before they become grammars, and put as the compiler reads them."""

from typing import Any

import pytest

from optimist_gateway.structure.json_schema import (
    MAX_DEPTH,
    check_json,
)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def test_integers_of_json_may_be_bounded() -> None:
    value = {"a": [1, 2.5, None], "b": {"c": "x", "d": -5}}
    check_json(value, range(-5, 2))
    check_json(nested(MAX_DEPTH - 2))
    with pytest.raises(ValueError, match="has an integer not in -4 to 1"):
        check_json(value, range(-4, 2))
    check_json([-(10**400)])
