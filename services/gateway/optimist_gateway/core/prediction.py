"""The expected answer that a client attaches to a request."""

from collections.abc import Sequence


def normalise_line_endings(text: str) -> str:
    """Returns the text with CR LF and CR replaced by LF, which is what models write."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def first_unknown_token(token_ids: Sequence[int], vocab_size: int) -> int | None:
    """Returns the first id that is not in [0, vocab_size), or None if there is none."""
    return next((token for token in token_ids if not 0 <= token < vocab_size), None)
