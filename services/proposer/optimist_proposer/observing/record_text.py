"""Tokens and texts as values of a YAML document that a person reads."""

import json
import re
from collections.abc import Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Stands in decoded text for bytes that are no whole character."""

# What YAML does not take as it stands, or takes for the end of a line.
_SPECIAL = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_encode = json.JSONEncoder(ensure_ascii=False).encode
# Halves of pairs, which are no characters; no escape that every YAML reader takes stands for one.
_SURROGATE = re.compile("[\ud800-\udfff]")


def quote(text: str) -> str:
    """Returns a text in double quotes, on one line, as JSON and YAML have it.

    Every character comes back when it is read, but surrogates, which become U+FFFD.
    """
    if text.isascii() and "\x7f" not in text:
        return _encode(text)
    quoted = _encode(_SURROGATE.sub(REPLACEMENT, text))
    return _SPECIAL.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


def token_text(token_texts: Sequence[str], token_id: int) -> str:
    """Returns the text of a token.

    Part of a character (some of its bytes) and a token that the vocabulary lacks have none; their
    id stands for it, in angle brackets.
    """
    if 0 <= token_id < len(token_texts):
        text = token_texts[token_id]
        if REPLACEMENT not in text:
            return text
    return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}{token_id}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"


def number_list(numbers: Sequence[int]) -> str:
    """Returns whole numbers as a list on one line."""
    return str(list(numbers))


def line_values(token_texts: Sequence[str], token_ids: Sequence[int]) -> str:
    """Returns tokens as two values: ids and text."""
    text = "".join([token_text(token_texts, token_id) for token_id in token_ids])
    return f"token_ids: {number_list(token_ids)}, text: {quote(text)}"


def token_values(token_texts: Sequence[str], token_ids: Sequence[int]) -> str:
    """Returns tokens as three values: ids, text, and how many characters of it are each token's."""
    lengths = [len(token_text(token_texts, token_id)) for token_id in token_ids]
    return f"{line_values(token_texts, token_ids)}, lengths: {number_list(lengths)}"
