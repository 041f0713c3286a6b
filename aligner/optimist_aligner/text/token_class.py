"""What sort of token a token is: enough to tell names from brackets, without knowing a language."""

from collections.abc import Sequence
from typing import Final

NEWLINE: Final = 0
SPACE: Final = 1
SPACED_WORD: Final = 2
WORD: Final = 3
NUMBER: Final = 4
OPENING: Final = 5
CLOSING: Final = 6
COMMA: Final = 7
QUOTE: Final = 8
OTHER: Final = 9


def token_class(text: str) -> int:
    """Returns the class of a token by its text."""
    if "\n" in text:
        return NEWLINE
    stripped = text.strip()
    if not stripped:
        return SPACE if text else OTHER
    first = stripped[0]
    if first.isalpha() or first == "_":
        return SPACED_WORD if text[0] == " " else WORD
    if first.isdigit():
        return NUMBER
    for klass, characters in (
        (OPENING, "([{<"),
        (CLOSING, ")]}>"),
        (COMMA, ",;:"),
        (QUOTE, "\"'`"),
    ):
        if first in characters:
            return klass
    return OTHER


class TokenClasses:
    """The class of each token of a vocabulary; of other tokens it is OTHER."""

    def __init__(self, token_texts: Sequence[str]) -> None:
        self.table = bytes(map(token_class, token_texts))
        """By token [vocab_size]."""

    def find(self, token_id: int) -> int:
        """Returns the class of a token."""
        return self.table[token_id] if 0 <= token_id < len(self.table) else OTHER
