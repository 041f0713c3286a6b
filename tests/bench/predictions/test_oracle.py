"""The oracle takes as few passes as copying spans allows."""

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from optimist_bench.predictions.oracle import (
    greedy_course,
    span_lengths,
    span_lengths_with_own,
)

short_texts = st.lists(st.integers(0, 2), max_size=14)


def contains(text: list[int], part: list[int]) -> bool:
    return any(text[start : start + len(part)] == part for start in range(len(text) + 1))


def longest_span(truth: list[int], position: int, texts: list[list[int]]) -> int:
    rest = len(truth) - position
    fits = [
        length
        for length in range(rest + 1)
        if any(contains(text, truth[position : position + length]) for text in texts)
    ]
    return max(fits)


def fewest_passes(lengths: list[int], window: int) -> int:
    """Tries every way to accept less than is possible too."""

    @cache
    def passes(position: int) -> int:
        if position >= len(lengths):
            return 0
        most = min(lengths[position], window)
        return 1 + min(passes(position + accepted + 1) for accepted in range(most + 1))

    return passes(0)


@given(short_texts, short_texts)
def test_spans_are_the_longest_and_those_of_the_output_end_before_they_are_used(
    predicted: list[int], truth: list[int]
) -> None:
    places = range(len(truth))
    lengths = list(span_lengths(predicted, truth))
    assert lengths == [longest_span(truth, at, [predicted]) for at in places]
    lengths = list(span_lengths_with_own(predicted, truth))
    assert lengths == [longest_span(truth, at, [predicted, truth[:at]]) for at in places]


@given(short_texts, short_texts, st.integers(1, 6))
def test_taking_the_longest_is_optimal(predicted: list[int], truth: list[int], window: int) -> None:
    for lengths in (span_lengths(predicted, truth), span_lengths_with_own(predicted, truth)):
        course = greedy_course(lengths, window)
        assert course.num_passes == fewest_passes(list(lengths), window)
        assert course.num_accepted + course.num_passes - len(truth) in (0, 1)
