from array import array

from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.context_index import (
    MOST_ORDER,
    MOST_TOKEN_ID,
    ContextIndex,
    Places,
    context_key,
)
from optimist_aligner.text.sources import INT32

LARGEST = [-1, 0, MOST_TOKEN_ID - 1, MOST_TOKEN_ID]
token_lists = st.lists(st.integers(-1, 3), max_size=40) | st.lists(
    st.sampled_from(LARGEST), max_size=20
)
place_lists = st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True).map(sorted)


def brute_places(text: list[int], context: list[int]) -> list[int]:
    order = len(context)
    return [end for end in range(order, len(text) + 1) if text[end - order : end] == context]


@given(text=token_lists, more=token_lists, order=st.integers(1, MOST_ORDER))
def test_places_are_those_of_a_search(text: list[int], more: list[int], order: int) -> None:
    index = ContextIndex(array(INT32, text))
    contexts = [[*text, *more][end - order : end] for end in range(order, len(text + more) + 1)]
    for context in contexts:
        found = index.find(order, context_key(context, order))
        expected = brute_places(text, context)
        if found is None:
            assert not expected
        else:
            assert found.all[found.start : found.end].tolist() == expected
            assert expected


def test_key_depends_on_the_last_tokens_and_their_order() -> None:
    assert context_key([9, 1, 2, 3], 3) == context_key([1, 2, 3], 3)
    keys = {context_key(list(tokens), 3) for tokens in ((1, 2, 3), (3, 2, 1), (2, 1, 3))}
    assert len(keys) == 3


def test_empty_text_has_no_places() -> None:
    index = ContextIndex(array(INT32))
    assert all(index.find(order, context_key([1, 2, 3], order)) is None for order in (1, 2, 3))


@given(places=place_lists, place=st.integers(-2, 62), most=st.integers(1, 12))
def test_nearest_are_side_by_side_and_most_of_them_ahead(
    places: list[int], place: int, most: int
) -> None:
    all_places = array(INT32, [99, *places, 98])
    found = Places(all_places, 1, 1 + len(places)).nearest(place, most).tolist()
    assert len(found) == min(most, len(places))
    first = places.index(found[0])
    assert found == places[first : first + len(found)]
    before, ahead = (sum(each < place for each in places), sum(each >= place for each in places))
    if len(places) > most and before >= most // 3 and ahead >= most - most // 3:
        assert sum(each < place for each in found) == most // 3
