"""Stop strings, however the text is cut into pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_gateway.core.answer.detokenize import StopStrings

few_letters = st.text("ab", max_size=30)


def first_stop(text: str, stop: list[str]) -> tuple[int, int] | None:
    """Where the first completed stop string begins and ends; the longest of those ending there."""
    for end in range(len(text) + 1):
        starts = [end - len(one) for one in stop if text[:end].endswith(one)]
        if starts:
            return min(starts), end
    return None


@given(
    few_letters,
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_text_ends_before_the_stop_string_that_is_complete_first(
    text: str, stop: list[str]
) -> None:
    state = StopStrings(stop)
    shown = "".join(state.push(character) for character in text)
    expected = first_stop(text, stop)
    assert state.found == (expected is not None)
    assert shown + state.flush() == (text if expected is None else text[: expected[0]])


@given(few_letters, st.text("ab", min_size=1, max_size=4), st.lists(st.integers(0, 30)))
def test_pieces_do_not_matter_for_one_stop_string(text: str, stop: str, cuts: list[int]) -> None:
    state = StopStrings([stop])
    edges = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    shown = "".join(state.push(text[a:b]) for a, b in pairwise(edges))
    assert shown + state.flush() == text.split(stop)[0]


@given(few_letters, st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
def test_only_a_possible_beginning_is_held_back(text: str, stop: list[str]) -> None:
    state = StopStrings(stop)
    shown = "".join(state.push(character) for character in text)
    if not state.found:
        held = text[len(shown) :]
        assert held == "" or any(one.startswith(held) and one != held for one in stop)


def test_nothing_comes_behind_a_stop_string() -> None:
    state = StopStrings(["END"])
    assert state.push("to the END of") == "to the "
    assert state.push("it") == ""
    assert state.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
