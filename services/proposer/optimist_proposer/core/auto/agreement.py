"""How far what stands before a place agrees with what the output ends with."""

from collections.abc import Iterable

from optimist_proposer.core.auto.layout import MOST_LENGTH


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
    while text[place - length - 1] == text[end - length - 1]:
        length += 1
    return length


def choose_longest(
    text: list[int], places: Iterable[int], num_output: int, near: int, most: int
) -> list[int]:
    """Returns the places that agree the longest, among equals the nearest; going back counts twice.

    Args:
        text: Sources and output.
        places: To choose from.
        num_output: Tokens of the output.
        near: Where the text is expected to go on.
        most: How many to return.
    """

    def rank(place: int) -> tuple[int, int]:
        distance = place - near
        return -count_equal(text, place, num_output), distance if distance >= 0 else -2 * distance

    return sorted(places, key=rank)[:most]
