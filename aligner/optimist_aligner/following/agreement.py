"""How far what stands before an offset agrees with what the output ends with."""

from collections.abc import Sequence
from typing import Final

from optimist_aligner.model.layout import MOST_LENGTH

_LENGTHS: Final = (MOST_LENGTH, 16, 8, 5)


def count_equal(text: Sequence[int], offset: int, num_output: int, num_skipped: int = 0) -> int:
    """Returns how many tokens before an offset are those that the text ends with.

    Args:
        text: Sources and output.
        offset: In the text.
        num_output: Tokens of the output; no others are compared with.
        num_skipped: Tokens that are not compared, the last ones on both sides.
    """
    first, second = offset - 1 - num_skipped, len(text) - 1 - num_skipped
    most = min(MOST_LENGTH, offset - num_skipped, num_output - num_skipped)
    length = 0
    while length < most and text[first - length] == text[second - length]:
        length += 1
    return length


def choose_longest(
    text: Sequence[int], offsets: Sequence[int], num_output: int, near: int, most: int
) -> list[int]:
    """Returns the offsets that agree longest, among equals the nearest; going back counts twice.

    Lengths are distinguished roughly, by `_LENGTHS`.

    Args:
        text: Sources and output.
        offsets: To choose from.
        num_output: Tokens of the output.
        near: Where the text is expected to go on.
        most: How many to return.
    """

    def rank(offset: int) -> tuple[int, int]:
        length = count_equal(text, offset, num_output)
        distance = offset - near if offset >= near else 2 * (near - offset)
        return sum(length < each for each in _LENGTHS), distance

    return sorted(offsets, key=rank)[:most]
