"""Tokens have the class of their first sign."""

import pytest

from optimist_aligner.model.layout import NUM_CLASSES
from optimist_aligner.text import token_class as classes
from optimist_aligner.text.token_class import token_class


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("\n", "):\n    "), classes.NEWLINE),
        (("    ",), classes.SPACE),
        ((" word",), classes.SPACED_WORD),
        (("word", "漢", "_"), classes.WORD),
        (("12",), classes.NUMBER),
        (("([",), classes.OPENING),
        ((")",), classes.CLOSING),
        ((",",), classes.COMMA),
        (('"',), classes.QUOTE),
        (("", "+=", "\ufffd"), classes.OTHER),
    ],
)
def test_class_is_that_of_the_first_sign_that_is_no_space(
    texts: tuple[str, ...], expected: int
) -> None:
    assert {token_class(text) for text in texts} == {expected}
    assert 0 <= expected < NUM_CLASSES
