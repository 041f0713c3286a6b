"""Hooks of schemathesis: no bodies are made that are huge, and each field is tried at one body."""

from typing import Any

import schemathesis

# Arrays and texts of such lengths are made in no time; other tests go to the longer limits.
MAX_ITEMS = 64
MAX_LENGTH = 1024
BODIES = ("ChatCompletionBody", "CompletionBody", "ResponsesBody", "TokenizeBody")
EVERYWHERE = {"messages", "model", "prompt", "stream"}


@schemathesis.hook
def before_load_schema(_context: Any, raw_schema: Any) -> None:
    """Changes the document before bodies are made by it."""
    _bound(raw_schema)
    tried: set[str] = set()
    for name in BODIES:
        properties = raw_schema["components"]["schemas"][name]["properties"]
        for field in tried.intersection(properties):
            del properties[field]
        tried |= properties.keys() - EVERYWHERE


def _bound(schema: Any) -> None:
    """Takes limits away whose bodies would be huge, so that none are made at their boundaries."""
    if isinstance(schema, dict):
        for keyword, most in (("maxItems", MAX_ITEMS), ("maxLength", MAX_LENGTH)):
            if isinstance(schema.get(keyword), int) and schema[keyword] > most:
                del schema[keyword]
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else ():
        _bound(part)
