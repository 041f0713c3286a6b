import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.context_index import (
    MOST_ORDER,
    MOST_TOKEN_ID,
    TOKEN_BITS,
    TOKEN_OFFSET,
    context_key,
)
from optimist_aligner.text.growing_text import GrowingText

token_lists = st.lists(st.sampled_from([-1, 0, 7, MOST_TOKEN_ID]), max_size=20)


@given(before=token_lists, parts=st.lists(st.tuples(st.integers(0, 2), token_lists), max_size=8))
def test_copies_grow_apart(before: list[int], parts: list[tuple[int, list[int]]]) -> None:
    text = GrowingText(before)
    # Of all three one grows while the others have room, too.
    text.extend([1, 2])
    copy = text.copy()
    texts = [text, copy, copy.copy()]
    expected = [[*before, 1, 2] for _ in texts]
    for number, part in parts:
        if len(part) == 1:
            texts[number].append(part[0])
        else:
            texts[number].extend(part)
        expected[number] += part
        assert [list(each.ids) for each in texts] == expected
        assert list(map(len, texts)) == list(map(len, expected))


@given(
    tokens=st.lists(
        st.sampled_from([-1, 0, 1, MOST_TOKEN_ID]), min_size=MOST_ORDER, max_size=MOST_ORDER + 2
    ),
    order=st.integers(1, MOST_ORDER),
)
def test_key_of_the_end_is_that_of_its_tokens(tokens: list[int], order: int) -> None:
    places = [TOKEN_BITS * (order - distance) for distance in range(1, order + 1)]
    expected = sum((tokens[-1 - n] + TOKEN_OFFSET) << place for n, place in enumerate(places))
    assert context_key(GrowingText(tokens).ids, order) == expected


def test_tokens_that_are_no_int32_are_refused() -> None:
    with pytest.raises(OverflowError):
        GrowingText([1 << 31])
