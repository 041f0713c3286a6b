"""Token ids split at the tokens that end a line."""

from array import array
from collections.abc import Set


def line_starts(token_ids: "array[int]", newline_token_ids: Set[int]) -> list[int]:
    """Returns where each line starts, and the end of the last, [num_lines + 1].

    A line includes the token that ends it. Tokens behind the last such token are a line of their
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


def end_of_line(token_ids: "array[int]", start: int, newline_token_ids: Set[int]) -> int:
    """Returns the position behind the first token from `start` on that ends a line; -1 if none."""
    for position in range(start, len(token_ids)):
        if token_ids[position] in newline_token_ids:
            return position + 1
    return -1
