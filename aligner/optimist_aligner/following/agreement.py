"""How far what stands before a place agrees with what the output ends with."""

from collections.abc import Sequence
from typing import Final

from optimist_aligner.model.layout import MOST_LENGTH

_LENGTHS: Final = (MOST_LENGTH, 16, 8, 5)


def count_equal(text: list[int], place: int, num_output: int) -> int:
    """Returns how many tokens before a place are those that the text ends with.

    Args:
        text: Sources and output.
        place: In the text.
        num_output: Tokens of the output; no others are compared with.
    """
    end = len(text)
    most = min(MOST_LENGTH, place, num_output)
    if text[place - most : place] == text[end - most :]:
        return most
    length = 0
    while (
        length + 4 <= most
        and text[place - length - 4 : place - length] == text[end - length - 4 : end - length]
    ):
        length += 4
    while length < most and text[place - length - 1] == text[end - length - 1]:
        length += 1
    return length


def choose_longest(
    text: list[int], places: Sequence[int], num_output: int, near: int, most: int
) -> list[int]:
    """Returns the places that agree the longest, among equals the nearest; going back counts twice.

    Lengths are distinguished roughly, by `_LENGTHS`.

    Args:
        text: Sources and output.
        places: To choose from.
        num_output: Tokens of the output.
        near: Where the text is expected to go on.
        most: How many to return.
    """

    def measure(place: int) -> int:
        return place - near if place >= near else 2 * (near - place)

    chosen: list[int] = []
    rest = places
    for length in _LENGTHS:
        if length > num_output:
            continue
        tail = text[-length:]
        agreeing = [place for place in rest if text[place - length : place] == tail]
        if agreeing:
            chosen += sorted(agreeing, key=measure)
            if len(chosen) >= most:
                return chosen[:most]
            rest = [place for place in rest if place not in agreeing]
    return (chosen + sorted(rest, key=measure))[:most]
