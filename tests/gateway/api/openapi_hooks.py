"""Hooks of schemathesis: no bodies are made that are huge."""

from typing import Any

import schemathesis

# Arrays and texts of such lengths are made in no time; other tests go to the longer limits.
MAX_ITEMS = 64
MAX_LENGTH = 1024


@schemathesis.hook
def before_load_schema(_context: Any, raw_schema: Any) -> None:
    """Takes limits away whose bodies would be huge, so that none are made at their boundaries."""
    if isinstance(raw_schema, dict):
        for keyword, most in (("maxItems", MAX_ITEMS), ("maxLength", MAX_LENGTH)):
            if isinstance(raw_schema.get(keyword), int) and raw_schema[keyword] > most:
                del raw_schema[keyword]
        raw_schema = list(raw_schema.values())
    for part in raw_schema if isinstance(raw_schema, list) else ():
        before_load_schema(_context, part)
