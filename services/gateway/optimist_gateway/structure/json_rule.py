"""JSON that a schema describes, as an expression of llguidance's Lark dialect."""

import json
import re
from collections.abc import Mapping
from typing import Any

from optimist_gateway.structure.schema import Node, children, with_schemas

MAX_WHITE_SPACE = 64
"""Most characters between two values of JSON: a model that loves white space ends all the same."""
SPACE = r"[ \n\r\t]"
_OPTION = "whitespace_pattern"
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
# A key that is not declared may be any text, in the one way to write it.
_SPELLED_ONCE = {"patternProperties": {"": True}, "additionalProperties": False}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def json_rule(plain: Mapping[str, Any], *, is_lenient: bool) -> str:
    """Returns the expression of a plain schema.

    Of overlapping members of `oneOf` and unknown formats a lenient one lets everything through.
    """
    options: dict[str, Any] = {_OPTION: f"{SPACE}{{1,{MAX_WHITE_SPACE}}}"}
    if is_lenient:
        options["lenient"] = True
    schema = _spelled_once(plain)
    if schema is None:
        # No text has \u then, nor characters that are written in no other way.
        options["json_allowed_escapes"] = 'nrbtf\\"'
    return "%json " + json.dumps({"x-guidance": options, **(schema or plain)})


def allow_white_space(grammar: str) -> str:
    """Returns a grammar of an answer with as much white space in its JSON as the model likes."""
    bounded, free = (
        json.dumps({_OPTION: f"{SPACE}{number}"})[:-1]
        for number in (f"{{1,{MAX_WHITE_SPACE}}}", "+")
    )
    return grammar.replace(bounded, free)


def _spelled_once(plain: Mapping[str, Any]) -> dict[str, Any] | None:
    r"""Returns a schema in which no other key is a declared one, written with \u.

    llguidance tells keys apart by how they are written. None: that cannot be said in the schema,
    as patterns must not overlap, and control characters are written in several ways.
    """
    is_unclear = False

    def spelled(node: Node) -> Any:
        nonlocal is_unclear
        if not isinstance(node.value, dict):
            return node.value
        schema = {child.path[-1]: with_schemas(child, spelled) for child in children(node)}
        names = schema.get("properties", ())
        if "patternProperties" in schema or any(map(_CONTROL.search, names)):
            is_unclear = True
        if names and schema.get("additionalProperties") is not False:
            kind = ANY_OBJECT if schema.get("type") == "object" else {}
            schema["allOf"] = [*schema.get("allOf", ()), {**kind, **_SPELLED_ONCE}]
        return schema

    schema: dict[str, Any] = spelled(Node((), plain))
    return None if is_unclear else schema
