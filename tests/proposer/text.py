"""Texts as tokens: one per character, and one that has a newline in its middle."""

from array import array

from hypothesis import strategies as st

from optimist_proposer.core.algorithm import Algorithm
from optimist_proposer.core.cursor import Cursor
from optimist_proposer.core.lines import INT32
from optimist_proposer.core.window import Window, next_window

NEWLINE_INDENT = 1000
"""The token whose text is a newline and two spaces; written § in these tests."""

NEWLINES = frozenset({ord("\n"), NEWLINE_INDENT})

# Few letters, so that lines and parts of lines occur again and again.
texts = st.text(alphabet="ab\n§", max_size=40)


def tokens(text: str) -> "array[int]":
    return array(INT32, [NEWLINE_INDENT if letter == "§" else ord(letter) for letter in text])


def as_text(token_ids: "array[int]") -> str:
    return "".join("§" if token == NEWLINE_INDENT else chr(token) for token in token_ids)


def observed(algorithm: Algorithm, predicted: str, output: str) -> Cursor:
    """Returns the cursor after all of `output` in one observation."""
    cursor = Cursor()
    algorithm.observe(algorithm.prepare(tokens(predicted)), cursor, tokens(output))
    return cursor


def num_passes(algorithm: Algorithm, predicted: str, output: str, num_drafts: int) -> int:
    """Counts the passes of a target that emits `output` and verifies `num_drafts` a pass.

    The target keeps the last window it was sent and drafts from it at its own position.
    """
    prediction = algorithm.prepare(tokens(predicted))
    truth = tokens(output)
    cursor = Cursor()
    window = next_window(prediction, cursor, algorithm.reach(prediction, cursor))
    assert window is not None
    position = passes = 0
    while position < len(truth):
        drafts = _drafts(window, position, num_drafts)
        accepted = 0
        while (
            accepted < len(drafts)
            and drafts[accepted : accepted + 1]
            == truth[position + accepted : position + accepted + 1]
        ):
            accepted += 1
        emitted = truth[position : position + accepted + 1]
        algorithm.observe(prediction, cursor, emitted)
        reach = algorithm.reach(prediction, cursor)
        window = next_window(prediction, cursor, reach) or window
        position += len(emitted)
        passes += 1
    return passes


def _drafts(window: Window, position: int, num_drafts: int) -> "array[int]":
    start = position - window.base
    return window.token_ids[start : start + num_drafts]
