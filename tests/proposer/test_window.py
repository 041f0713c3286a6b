from hypothesis import given
from hypothesis import strategies as st

from optimist_proposer.core.cursor import LOST, Cursor
from optimist_proposer.core.line import LineAlgorithm
from optimist_proposer.core.window import next_window
from tests.proposer.text import NEWLINES, as_text, texts, tokens

LINE = LineAlgorithm(NEWLINES)
SIZE = 8


def test_first_window_is_the_head_of_the_prediction() -> None:
    window = next_window(LINE.prepare(tokens("abcdefghijkl")), Cursor(), SIZE)
    assert window is not None
    assert (window.epoch, window.base, window.prediction_offset) == (0, 0, 0)
    assert as_text(window.token_ids) == "abcdefgh"


def test_next_window_when_less_than_half_is_left() -> None:
    prediction, cursor = LINE.prepare(tokens("abcdefghijklmnopqrst")), Cursor()
    next_window(prediction, cursor, SIZE)
    LINE.observe(prediction, cursor, tokens("abcd"))
    assert next_window(prediction, cursor, SIZE) is None
    LINE.observe(prediction, cursor, tokens("e"))
    window = next_window(prediction, cursor, SIZE)
    assert window is not None
    assert (window.base, window.prediction_offset) == (5, 5)
    assert as_text(window.token_ids) == "fghijklm"


def test_no_window_when_the_last_one_reaches_the_end() -> None:
    prediction, cursor = LINE.prepare(tokens("abcdefgh")), Cursor()
    next_window(prediction, cursor, SIZE)
    LINE.observe(prediction, cursor, tokens("abcdefg"))
    assert next_window(prediction, cursor, SIZE) is None


def test_lost_takes_the_window_back_once() -> None:
    prediction, cursor = LINE.prepare(tokens("abc\ndef\n")), Cursor()
    next_window(prediction, cursor, SIZE)
    LINE.observe(prediction, cursor, tokens("x"))
    window = next_window(prediction, cursor, SIZE)
    assert window is not None
    assert (len(window.token_ids), window.prediction_offset) == (0, LOST)
    LINE.observe(prediction, cursor, tokens("y"))
    assert next_window(prediction, cursor, SIZE) is None


def test_lost_behind_the_last_window_takes_nothing_back() -> None:
    prediction, cursor = LINE.prepare(tokens("abc\ndef\n")), Cursor()
    next_window(prediction, cursor, SIZE)
    LINE.observe(prediction, cursor, tokens("abc\ndef\nx"))
    assert next_window(prediction, cursor, SIZE) is None


def test_new_epoch_sends_a_window() -> None:
    prediction, cursor = LINE.prepare(tokens("abc\ndef\nghi\n")), Cursor()
    next_window(prediction, cursor, SIZE)
    LINE.observe(prediction, cursor, tokens("abX\ndef\n"))
    window = next_window(prediction, cursor, SIZE)
    assert window is not None
    assert (window.epoch, window.base, window.prediction_offset) == (1, 8, 8)
    assert as_text(window.token_ids) == "ghi\n"


@given(texts, st.lists(texts, max_size=6), st.integers(2, 20))
def test_windows_are_slices_of_the_prediction_and_never_run_short(
    predicted: str, parts: list[str], size: int
) -> None:
    prediction, cursor = LINE.prepare(tokens(predicted)), Cursor()
    held = next_window(prediction, cursor, size)
    assert held is not None
    for part in parts:
        LINE.observe(prediction, cursor, tokens(part))
        window = next_window(prediction, cursor, size)
        if window is not None:
            held = window
            assert (window.epoch, window.base) == (cursor.epoch, cursor.num_known)
            assert len(window.token_ids) <= size
            if window.prediction_offset != LOST:
                end = window.prediction_offset + len(window.token_ids)
                assert window.token_ids == prediction.token_ids[window.prediction_offset : end]
        # What is drafted from the window that was last sent is what the cursor expects.
        ahead = held.token_ids[cursor.num_known - held.base :]
        if cursor.offset == LOST:
            assert not ahead
        else:
            rest = prediction.token_ids[cursor.offset :]
            assert ahead == rest[: len(ahead)]
            assert 2 * len(ahead) >= min(size, 2 * len(rest))
