"""How far what stands before an offset agrees with what the output ends with."""

from collections.abc import Sequence
from typing import Final

from mypy_extensions import i64

from optimist_aligner.model.layout import MOST_LENGTH
from optimist_aligner.text.growing_text import GrowingText

_LENGTHS: Final = (MOST_LENGTH, 16, 8, 5)
_SHORTNESS: Final = tuple(
    sum(length < each for each in _LENGTHS) for length in range(MOST_LENGTH + 1)
)
"""By length: how many of them it does not reach [MOST_LENGTH + 1]."""


def count_equal(text: GrowingText, offset: int, num_output: int) -> int:
    """Returns how many tokens before an offset are those that the text ends with.

    Args:
        text: Sources and output.
        offset: In the text.
        num_output: Tokens of the output; no others are compared with.
    """
    ids = text.ids
    first: i64 = offset - 1
    second: i64 = len(ids) - 1
    most: i64 = min(MOST_LENGTH, min(offset, num_output))
    length: i64 = 0
    while length < most and ids[first - length] == ids[second - length]:
        length += 1
    return length


def choose_longest(
    text: GrowingText, offsets: Sequence[int], num_output: int, near: int, most: int
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

    most_distance = 2 * len(text) + 1

    def rank(offset: int) -> int:
        distance = offset - near if offset >= near else 2 * (near - offset)
        return _SHORTNESS[count_equal(text, offset, num_output)] * most_distance + distance

    return sorted(offsets, key=rank)[:most]
