"""What sort of token a token is: enough to tell names from brackets, without knowing a language."""

from collections.abc import Sequence

NEWLINE, SPACE, SPACED_WORD, WORD, NUMBER, OPENING, CLOSING, COMMA, QUOTE, OTHER = range(10)


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
    """The class of each token of a vocabulary."""

    def __init__(self, token_texts: Sequence[str]) -> None:
        self.table = bytearray(map(token_class, token_texts))

    def cover(self, token_ids: Sequence[int]) -> None:
        """Makes the table long enough for tokens that the vocabulary does not have."""
        missing = max(token_ids, default=0) + 1 - len(self.table)
        if missing > 0:
            self.table.extend(bytes([OTHER]) * missing)
