from array import array

from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.context_index import (
    MOST_ORDER,
    MOST_TOKEN_ID,
    ContextIndex,
    Offsets,
    context_key,
)
from optimist_aligner.text.output_index import OutputIndex
from optimist_aligner.text.sources import INT32

few_tokens = st.integers(0, 3)
LARGEST = [-1, 0, MOST_TOKEN_ID - 1, MOST_TOKEN_ID]
token_lists = st.lists(st.integers(-1, 3), max_size=40) | st.lists(
    st.sampled_from(LARGEST), max_size=20
)
offset_lists = st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True).map(sorted)


def brute_offsets(text: list[int], context: list[int], start: int = 0) -> list[int]:
    first = start + len(context)
    return [end for end in range(first, len(text) + 1) if text[end - len(context) : end] == context]


@given(text=token_lists, more=token_lists, order=st.integers(1, MOST_ORDER))
def test_offsets_are_those_of_a_search(text: list[int], more: list[int], order: int) -> None:
    index = ContextIndex(array(INT32, text))
    for end in range(order, len(text + more) + 1):
        before = [*text, *more][:end]
        found = index.find(order, context_key(before, order))
        expected = brute_offsets(text, before[-order:])
        if found is None:
            assert not expected
        else:
            assert found.all[found.start : found.end].tolist() == expected
            assert expected


@given(offsets=offset_lists, offset=st.integers(-2, 62), most=st.integers(1, 12))
def test_nearest_are_side_by_side_and_most_of_them_ahead(
    offsets: list[int], offset: int, most: int
) -> None:
    all_offsets = array(INT32, [99, *offsets, 98])
    found = Offsets(all_offsets, 1, 1 + len(offsets)).nearest(offset, most).tolist()
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
    text, start = list(sources), len(sources)
    index = OutputIndex(text)
    for part in parts:
        text.extend(part)
        index.count(0)
    said = [*text[start:], *other]
    for order in range(1, MOST_ORDER + 1):
        for end in range(order, len(said) + 1):
            expected = brute_offsets(text, said[end - order : end], start)
            key = context_key(said[:end], order)
            for most in (1, 2, 99):
                assert index.find_latest(order, key, most) == expected[-most:]
