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
        assert prediction.identities[number] == same[0]


def test_absent_line_is_nowhere() -> None:
    assert not Prediction(tokens("a\nb\n"), NEWLINES).find(tokens("c\n"))
