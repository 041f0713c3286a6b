from array import array
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i32

from optimist_aligner.text.context_index import (
    MOST_ORDER,
    MOST_TOKEN_ID,
    ContextIndex,
    Offsets,
    context_key,
)
from optimist_aligner.text.growing_text import GrowingText
from optimist_aligner.text.output_index import OutputIndex
from optimist_aligner.text.sources import INT32

few_tokens = st.integers(0, 3)
LARGEST = [-1, 0, MOST_TOKEN_ID - 1, MOST_TOKEN_ID]
token_lists = st.lists(st.integers(-1, 3), max_size=40) | st.lists(
    st.sampled_from(LARGEST), max_size=20
)
PAIRS = [5, 5 + 30_011, 9, 9 + 40_503]
"""Two pairs of them have the same hash: (9, 30016) and (40512, 5)."""
varied = st.lists(st.sampled_from([*PAIRS, MOST_TOKEN_ID]) | st.integers(0, 400), max_size=60)
long_outputs = st.builds(lambda tokens, times: tokens * times, varied, st.integers(1, 12))
offset_lists = st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True).map(sorted)


def key_of(tokens: Sequence[int], order: int) -> int:
    return context_key(GrowingText(tokens).ids, order)


def brute_offsets(text: list[int], context: list[int], start: int = 0) -> list[int]:
    first = start + len(context)
    return [end for end in range(first, len(text) + 1) if text[end - len(context) : end] == context]


@given(text=token_lists, more=token_lists, order=st.integers(1, MOST_ORDER))
@example(text=[MOST_TOKEN_ID] * 9, more=[-1, MOST_TOKEN_ID], order=MOST_ORDER)
def test_offsets_are_those_of_a_search(text: list[int], more: list[int], order: int) -> None:
    index = ContextIndex(array(INT32, text))
    for end in range(order, len(text + more) + 1):
        before = [*text, *more][:end]
        found = index.find(order, key_of(before, order))
        expected = brute_offsets(text, before[-order:])
        if found is None:
            assert not expected
        else:
            assert list(found.all[found.start : found.end]) == expected
            assert expected


@given(offsets=offset_lists, offset=st.integers(-2, 62), most=st.integers(1, 12))
def test_nearest_are_side_by_side_and_most_of_them_ahead(
    offsets: list[int], offset: int, most: int
) -> None:
    all_offsets = vec[i32]([99, *offsets, 98])
    found = Offsets(all_offsets, 1, 1 + len(offsets)).nearest(offset, most)
    assert len(found) == min(most, len(offsets))
    first = offsets.index(found[0])
    assert found == offsets[first : first + len(found)]
    before, ahead = (
        sum(each < offset for each in offsets),
        sum(each >= offset for each in offsets),
    )
    if len(offsets) > most and before >= most // 3 and ahead >= most - most // 3:
        assert sum(each < offset for each in found) == most // 3


@given(
    sources=st.lists(few_tokens, max_size=5),
    parts=st.lists(st.lists(few_tokens, max_size=30), max_size=6),
    other=st.lists(few_tokens, max_size=6),
)
def test_offsets_in_the_output_are_those_of_a_search_of_the_output_alone(
    sources: list[int], parts: list[list[int]], other: list[int]
) -> None:
    growing, start = GrowingText(sources), len(sources)
    index = OutputIndex(growing)
    for part in parts:
        growing.extend(part)
        index.count(0, 1)
    text = list(growing.ids)
    said = [*text[start:], *other]
    for order in range(1, MOST_ORDER + 1):
        for end in range(order, len(said) + 1):
            expected = brute_offsets(text, said[end - order : end], start)
            key = key_of(said[:end], order)
            for most in (1, 2, 99):
                assert index.find_latest(order, key, most) == expected[-most:]


@given(
    parts=st.lists(long_outputs, min_size=1, max_size=4),
    num_sources=st.integers(0, 3),
    most=st.sampled_from([1, 4, 10_000]),
)
@example(parts=[[*range(200)], [*range(300), *range(40)], [9]], num_sources=2, most=4)
def test_offsets_are_found_in_outputs_that_outgrow_the_tables(
    parts: list[list[int]], num_sources: int, most: int
) -> None:
    text = GrowingText([0] * num_sources)
    index = OutputIndex(text)
    said: list[int] = []
    offsets: dict[tuple[int, ...], list[int]] = {}
    for part in parts:
        text.extend(part)
        for token_id in part:
            said.append(token_id)
            for order in range(1, min(MOST_ORDER, len(said)) + 1):
                end = num_sources + len(said)
                offsets.setdefault(tuple(said[-order:]), []).append(end)
        for context, expected in offsets.items():
            key = key_of(context, len(context))
            assert index.find_latest(len(context), key, most) == expected[-most:]
            reverse = context[::-1]
            key = key_of(reverse, len(reverse))
            assert index.find_latest(len(reverse), key, 9999) == offsets.get(reverse, [])
        for token_id in {*said, 401}:
            number = len(offsets.get((token_id,), []))
            assert index.count(token_id, 9999) == number
            assert index.count(token_id, 2) == min(number, 2)
