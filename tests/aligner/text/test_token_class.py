import pytest

from optimist_aligner.model.layout import NUM_CLASSES
from optimist_aligner.text.token_class import (
    CLOSING,
    COMMA,
    NEWLINE,
    NUMBER,
    OPENING,
    OTHER,
    QUOTE,
    SPACE,
    SPACED_WORD,
    WORD,
    TokenClasses,
    token_class,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n", NEWLINE),
        ("):\n    ", NEWLINE),
        ("    ", SPACE),
        ("", OTHER),
        (" word", SPACED_WORD),
        ("word", WORD),
        ("漢", WORD),
        ("_", WORD),
        ("12", NUMBER),
        ("([", OPENING),
        (")", CLOSING),
        (",", COMMA),
        ('"', QUOTE),
        ("+=", OTHER),
        ("\ufffd", OTHER),
    ],
)
def test_class_is_that_of_the_first_sign_that_is_no_space(text: str, expected: int) -> None:
    assert token_class(text) == expected


def test_every_class_has_a_row_of_weights() -> None:
    assert sorted({NEWLINE, SPACE, SPACED_WORD, WORD, NUMBER}) == [0, 1, 2, 3, 4]
    assert max(OPENING, CLOSING, COMMA, QUOTE, OTHER) == NUM_CLASSES - 1


def test_table_grows_for_tokens_that_the_vocabulary_lacks_and_keeps_what_it_has() -> None:
    classes = TokenClasses(["a", "\n"])
    classes.cover([1, 0])
    assert list(classes.table) == [WORD, NEWLINE]
    classes.cover([4])
    assert list(classes.table) == [WORD, NEWLINE, OTHER, OTHER, OTHER]
    classes.cover([])
    classes.cover([-1])
    assert len(classes.table) == 5
