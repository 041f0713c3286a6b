from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from optimist_proposer.core.line import end_of_line, line_starts
from tests.proposer.text import NEWLINES, as_text, texts, tokens


def split(text: str) -> list[str]:
    starts = line_starts(tokens(text), NEWLINES)
    return [text[start:end] for start, end in pairwise(starts)]


def test_lines_keep_their_newline() -> None:
    assert split("a\n\nb§c") == ["a\n", "\n", "b§", "c"]
    assert split("") == []
    assert split("a\n") == ["a\n"]


@given(texts)
def test_lines_are_the_text_and_end_at_newlines_only(text: str) -> None:
    parts = split(text)
    assert "".join(parts) == as_text(tokens(text))
    assert all(part[-1] in "\n§" for part in parts[:-1])
    assert not any(letter in "\n§" for part in parts for letter in part[:-1])


@given(texts, st.integers(0, 40))
def test_end_of_line_is_the_next_start(text: str, start: int) -> None:
    end = end_of_line(tokens(text), start, NEWLINES)
    later = [place for place, letter in enumerate(text) if letter in "\n§" and place >= start]
    assert end == (later[0] + 1 if later else -1)
