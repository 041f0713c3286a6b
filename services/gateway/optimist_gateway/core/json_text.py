"""JSON of clients: how much a text holds, before any of it becomes an object, and its value.

A parser holds the interpreter until it has made all objects: a second for eight megabytes of empty
lists. To count characters that begin or separate values takes a hundredth of that.
"""

import json
import re
from typing import Any

from pydantic_core import from_json

MAX_WEIGHT = 2**19
"""Of a body: twice as many numbers as a request may have tokens."""
HEAVY = 8
"""A string, a list or an object takes as long to read as so many numbers."""
_PIECE_BYTES = 2**18
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# The group has pairs of surrogates and all other escapes.
_ESCAPE = re.compile(
    r"(\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|\\[^u]|\\u(?![dD][89a-fA-F]))"
    r"|\\u[dD][89a-fA-F][\da-fA-F]{2}"
)


def parse_json(text: str, *, may_break_off: bool = False) -> Any:
    """Returns the value of a JSON text; halves of surrogate pairs are U+FFFD.

    They come from clients that cut a text between the halves of a character; no tokenizer takes
    them. Of a text that `may_break_off`, the value is what there is of it. Raises ValueError or
    RecursionError, as `json.loads` does.
    """
    if _SURROGATE.search(text) is not None:
        text = _ESCAPE.sub(lambda match: match[1] or r"\ufffd", text)
    return from_json(text, allow_partial="trailing-strings") if may_break_off else json.loads(text)


def is_heavier(text: bytes, most: int) -> bool:
    """Returns whether a JSON text weighs more than `most`; looks no further than that.

    Each value weighs one; strings, names of fields, lists and objects weigh `HEAVY`. Of a text that
    is no JSON, at least what a parser would read of it counts.
    """
    weight = start = is_in_string = 0
    while start < len(text):
        piece = _piece(text, start)
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b" ".join(parts[is_in_string::2])
        num_strings = (len(parts) - is_in_string) // 2
        num_heavy = outside.count(b"[") + outside.count(b"{") + num_strings
        weight += outside.count(b",") + HEAVY * num_heavy
        if weight > most:
            return True
        # An even number of parts has an odd number of quotes between them.
        is_in_string ^= 1 - len(parts) % 2
    return False


def _piece(text: bytes, start: int) -> bytes:
    """Returns the next piece, which does not end within an escape."""
    piece = text[start : start + _PIECE_BYTES]
    num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
    return text[start : start + len(piece) + num_backslashes % 2]
