from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.context_index import MOST_ORDER, context_key
from optimist_aligner.text.output_index import OutputIndex

token_lists = st.lists(st.integers(0, 3), max_size=30)


@given(sources=st.lists(st.integers(-1, 3), max_size=5), parts=st.lists(token_lists, max_size=6))
def test_places_are_those_of_a_search_of_the_output_alone(
    sources: list[int], parts: list[list[int]]
) -> None:
    text, start = list(sources), len(sources)
    index = OutputIndex(start)
    for part in parts:
        first = len(text)
        text.extend(part)
        index.extend(text, first)
    for order in range(1, MOST_ORDER + 1):
        for end in range(start + order, len(text) + 1):
            context = text[end - order : end]
            expected = [
                place
                for place in range(start + order, len(text) + 1)
                if text[place - order : place] == context
            ]
            assert list(index.find(order, context_key(context, order))) == expected


def test_what_was_not_said_is_nowhere() -> None:
    index = OutputIndex(2)
    index.extend([5, 6, 7], 2)
    assert list(index.find(1, context_key([6], 1))) == []
    assert list(index.find(2, context_key([6, 7], 2))) == []
    assert list(index.find(1, context_key([7], 1))) == [3]
