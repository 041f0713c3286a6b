"""What may come next where nothing agrees: near where the offset was lost, frequent tokens."""

import pytest

from optimist_aligner.drafting.candidates import View
from optimist_aligner.drafting.guesses import guess_ahead, guess_frequent, guess_template
from optimist_aligner.following.template import NOWHERE
from optimist_aligner.model.layout import EXPECTED, FREQUENT, MOST_AHEAD, TEMPLATE
from tests.aligner.drafting.test_matches import look

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def ahead(view: View, *taken: int) -> str:
    candidates = guess_ahead(view, taken)
    assert all(each.kind == EXPECTED for each in candidates)
    assert all(view.text[each.offset] == each.token_id for each in candidates)
    return "".join(chr(each.token_id) for each in candidates)


@pytest.mark.parametrize(
    ("predicted", "output", "taken", "expected"),
    [
        pytest.param(LETTERS, "abcd", (), "", id="not lost"),
        pytest.param(LETTERS, "abcd!", (), LETTERS[4 : 4 + MOST_AHEAD], id="some tokens"),
        pytest.param("abcdeefef", "abcd!", (), "ef", id="to the end, each once"),
        pytest.param("abcdefgh", "abcd!", (5,), "egh", id="one is a candidate already"),
    ],
)
def test_what_is_ahead_where_the_offset_was_lost_is_guessed(
    predicted: str, output: str, taken: tuple[int, ...], expected: str
) -> None:
    assert ahead(look(predicted, output), *taken) == expected


def test_line_beginnings_are_guessed_behind_a_line_end() -> None:
    text = "abcd" + LETTERS * 2 + "\n1 one\n2 two\n3 three\n4 four"
    guessed = ahead(look(text, "abcd!\n"))
    assert guessed[-3:] == "123"
    assert "1" not in ahead(look(text, "abcd!-"))


def test_template_goes_on_where_it_was_lost() -> None:
    view = look("", "abcdefgh-abcdef!")
    candidates = guess_template(view)
    assert all(each.kind == TEMPLATE for each in candidates)
    guessed = "".join(chr(each.token_id) for each in candidates)
    assert guessed.startswith("gh-a")
    assert len(set(guessed)) == len(guessed)
    assert all(each.offset >= view.start for each in candidates)
    assert not guess_template(look("", "abcdefgh-abcdef"))


def test_frequent_tokens_are_the_latest_first_and_each_once() -> None:
    view = look("", "abca")
    frequent = guess_frequent(view, (ord("c"), ord("z")))
    assert [chr(each.token_id) for each in frequent] == ["a", "c", "b", "z"]
    assert all(each.kind == FREQUENT for each in frequent)
    assert frequent[0].offset == view.start + 3
    assert frequent[-1].offset == NOWHERE
