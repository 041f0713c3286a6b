"""Cuts tokens into texts, and texts into lines."""

from array import array
from collections.abc import Iterator, Set

from optimist_aligner.text.sources import SEPARATOR


def split_texts(token_ids: "array[int]") -> Iterator["array[int]"]:
    """Yields texts that end with a separator each; raises ValueError if the last one does not."""
    start = 0
    while start < len(token_ids):
        try:
            end = token_ids.index(SEPARATOR, start)
        except ValueError:
            raise ValueError("a packed source has no end") from None
        yield token_ids[start:end]
        start = end + 1


def line_starts(token_ids: "array[int]", newline_token_ids: Set[int]) -> list[int]:
    """Returns where each line starts, and the end of the last, [num_lines + 1].

    A line includes the token that ends it. Tokens after the last such token are a line of their
    own; no tokens are no line.

    Args:
        token_ids: Tokens, [num_tokens].
        newline_token_ids: The tokens that end a line.
    """
    starts = [0]
    starts.extend(
        position
        for position, token_id in enumerate(token_ids, start=1)
        if token_id in newline_token_ids
    )
    if starts[-1] != len(token_ids):
        starts.append(len(token_ids))
    return starts
