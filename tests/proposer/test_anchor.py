from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_proposer.core.anchor import MAX_MATCH, REACH_PER_MATCH, AnchorAlgorithm
from optimist_proposer.core.cursor import LOST, Cursor
from optimist_proposer.core.line import LineAlgorithm
from tests.proposer.text import NEWLINES, num_passes, observed, texts, tokens

ANCHOR = AnchorAlgorithm(NEWLINES)
CODE = "def area(w, h):\n    return w * h\n\n\ndef main():\n    print(area(2, 3))\n"


def expected_next(predicted: str, output: str) -> str | None:
    """Returns what is expected behind `output`; None when the cursor is lost."""
    cursor = observed(ANCHOR, predicted, output)
    return None if cursor.offset == LOST else predicted[cursor.offset :]


@given(texts, st.integers(0, 40))
def test_exact_prediction_is_never_lost(text: str, length: int) -> None:
    output = text[:length]
    cursor = observed(ANCHOR, text, output)
    assert (cursor.offset, cursor.epoch) == (len(output), 0)


def test_tokens_that_the_prediction_lacks_are_lost() -> None:
    assert expected_next("abc", "x") is None
    assert expected_next("abc", "abcxyz") is None
    assert expected_next("", "x") is None


def test_changed_token() -> None:
    assert expected_next("one two three", "one 2") is None
    assert expected_next("one two three", "one 2 ") == "three"


def test_inserted_and_deleted_tokens() -> None:
    assert expected_next("f(a, b, c)", "f(a, X, b") == ", c)"
    assert expected_next("f(a, b, c)", "f(a, c") == ")"


def test_moved_text_is_found_by_two_tokens() -> None:
    predicted = "first block; then part two.\n"
    assert expected_next(predicted, "p") is None
    assert expected_next(predicted, "pa") == "rt two.\n"


def test_one_token_counts_only_near_the_place_of_the_loss() -> None:
    assert expected_next("abc" + "." * 20 + "x", "aX") is None
    assert expected_next("abc" + "." * 20 + "x", "abX.") == "." * 19 + "x"
    assert expected_next("abc" + "-" * 20 + "x", "abcx") is None


def test_the_longest_match_wins_and_then_the_nearest() -> None:
    assert expected_next("foo=1;bar=1;foo=2;", "foo=1;!bar=") == "1;foo=2;"
    assert expected_next("x a1 y a1 z a1 w", "x a1 y !a1") == " z a1 w"


def test_reach_grows_with_the_evidence() -> None:
    prediction, cursor = ANCHOR.prepare(tokens(CODE)), Cursor()
    assert ANCHOR.reach(prediction, cursor) == len(CODE)
    ANCHOR.observe(prediction, cursor, tokens("def rect(w"))
    matched = len("(w")
    assert ANCHOR.reach(prediction, cursor) == REACH_PER_MATCH * matched
    ANCHOR.observe(prediction, cursor, tokens(", h"))
    assert ANCHOR.reach(prediction, cursor) == REACH_PER_MATCH * (matched + len(", h"))


@given(texts, texts, st.lists(st.integers(0, 40), max_size=5))
def test_division_into_observations_does_not_matter(
    predicted: str, output: str, cuts: list[int]
) -> None:
    prediction, cursor = ANCHOR.prepare(tokens(predicted)), Cursor()
    edges = sorted({0, len(output), *(cut for cut in cuts if cut < len(output))})
    for start, end in pairwise(edges):
        ANCHOR.observe(prediction, cursor, tokens(output[start:end]))
    assert cursor == observed(ANCHOR, predicted, output)


@given(texts, texts)
def test_what_is_said_to_match_does(predicted: str, output: str) -> None:
    cursor = observed(ANCHOR, predicted, output)
    if cursor.offset == LOST:
        assert output.endswith("".join("§" if t == 1000 else chr(t) for t in cursor.tail))
        assert len(cursor.tail) <= MAX_MATCH
        return
    matched = predicted[cursor.matched_from : cursor.offset]
    assert output.endswith(matched)
    assert ANCHOR.reach(ANCHOR.prepare(tokens(predicted)), cursor) >= 1


@pytest.mark.parametrize(
    "output",
    [
        CODE.replace("w * h", "h * w"),
        CODE.replace("area", "surface"),
        CODE.replace("(w, h)", "(w, h=1)"),
    ],
)
def test_it_needs_fewer_passes_than_lines_do(output: str) -> None:
    by_lines = num_passes(LineAlgorithm(NEWLINES), CODE, output, 64)
    assert num_passes(ANCHOR, CODE, output, 64) < by_lines


def test_many_equal_tokens_are_searched_near_the_loss() -> None:
    predicted = "a" * 500 + "b" + "a" * 500
    cursor = observed(ANCHOR, predicted, "a" * 400 + "xaa")
    assert 400 <= cursor.offset <= 405
