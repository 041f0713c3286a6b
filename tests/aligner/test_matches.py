"""Candidates stand behind as many equal tokens as they say, and are marked by what is known."""

from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.drafting.candidates import NO_STOP, View
from optimist_aligner.drafting.matches import find_matches, find_skipped
from optimist_aligner.follower import Aligner
from optimist_aligner.model.layout import (
    MOST_LENGTH,
    OWN,
    OWN_SKIP,
    PREDICTED,
    PREDICTED_SKIP,
)
from optimist_aligner.text.vocabulary import Vocabulary
from tests.aligner.words import observed

ALGORITHM = Aligner(Vocabulary([chr(code) for code in range(128)]))
token_lists = st.lists(st.integers(97, 100), max_size=40)


def num_equal(view: View, offset: int) -> int:
    context, before = view.text[-view.num_context :], view.text[:offset]
    length = 0
    while length < min(len(context), offset) and before[-length - 1] == context[-length - 1]:
        length += 1
    return length


@given(predictions=st.lists(token_lists, max_size=2), output=token_lists, prompt=token_lists)
def test_candidates_are_what_stands_behind_as_many_equal_tokens_as_they_say(
    predictions: list[list[int]], output: list[int], prompt: list[int]
) -> None:
    view = observed(ALGORITHM, predictions, output, prompt).look()
    plain = [each for each in find_matches(view) if each.stop == NO_STOP]
    offsets = [each.offset for each in plain]
    assert len(set(offsets)) == len(offsets)
    for each in plain:
        assert each.token_id == view.text[each.offset] >= 0
        assert each.kind == (PREDICTED if each.offset < view.num_aligned else OWN)
        assert each.length == min(MOST_LENGTH, num_equal(view, each.offset))
    taken = set(offsets)
    for each in find_skipped(view, taken):
        assert each.token_id == view.text[each.offset] >= 0
        assert each.kind == (PREDICTED_SKIP if each.offset < view.num_aligned else OWN_SKIP)
        assert view.text[each.offset - 1] != view.text[-1]
        assert view.text[each.offset - 3 : each.offset - 1] == view.text[-3:-1]
        assert each.offset not in offsets
