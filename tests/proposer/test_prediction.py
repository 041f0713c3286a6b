from itertools import pairwise

from hypothesis import given

from optimist_proposer.core.prediction import Prediction
from tests.proposer.text import NEWLINES, texts, tokens


@given(texts)
def test_every_line_is_found_where_it_is(text: str) -> None:
    prediction = Prediction(tokens(text), NEWLINES)
    starts = prediction.line_starts
    lines = [text[start:end] for start, end in pairwise(starts)]
    assert prediction.num_complete_lines == sum(line[-1] in "\n§" for line in lines)
    assert prediction.longest_line == max(map(len, lines), default=0)
    for number, line in enumerate(lines):
        same = [other for other, text in enumerate(lines) if text == line]
        assert list(prediction.find(tokens(line))) == same
        assert list(prediction.lines_equal_to(number)) == same
        assert prediction.mask(same) == sum(1 << other for other in same)


def test_absent_line_is_nowhere() -> None:
    assert not Prediction(tokens("a\nb\n"), NEWLINES).find(tokens("c\n"))


def test_masks_of_frequent_lines() -> None:
    prediction = Prediction(tokens("a\n\n" * 300), NEWLINES)
    assert prediction.mask(prediction.lines_equal_to(1)) == sum(1 << 2 * i + 1 for i in range(300))
    assert prediction.mask(prediction.lines_equal_to(0)) == sum(1 << 2 * i for i in range(300))
