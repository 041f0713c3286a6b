from hypothesis import given

from optimist_proposer.core.cursor import LOST
from optimist_proposer.core.exact import ExactAlgorithm
from tests.proposer.text import NEWLINES, observed, texts

EXACT = ExactAlgorithm(NEWLINES)


@given(texts, texts)
def test_follows_the_common_prefix_and_no_further(predicted: str, output: str) -> None:
    cursor = observed(EXACT, predicted, output)
    assert cursor.offset == (len(output) if predicted.startswith(output) else LOST)
    assert (cursor.epoch, cursor.num_known) == (0, len(output))


def test_never_returns() -> None:
    assert observed(EXACT, "a\nb\nc\n", "x\nb\nc\n").offset == LOST
