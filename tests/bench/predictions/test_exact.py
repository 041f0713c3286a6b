import pytest
from hypothesis import given

from optimist_bench.predictions.baselines.exact import ExactAlgorithm
from optimist_proposer.core.chain import START_EVIDENCE
from tests.proposer.text import expected_text, followed, texts

EXACT = ExactAlgorithm()


@given(texts, texts)
def test_follows_the_common_prefix_and_no_further(predicted: str, output: str) -> None:
    rest = predicted[len(output) :] if predicted.startswith(output) else ""
    assert expected_text(EXACT, predicted, output) == rest


def test_never_returns() -> None:
    assert expected_text(EXACT, "a\nb\nc\n", "x\nb\nc\n") == ""


def test_first_prediction_counts_that_the_output_has_not_left() -> None:
    predictions = ["abc", "", "abd", "xyz"]
    assert expected_text(EXACT, predictions, "") == "abc"
    assert expected_text(EXACT, predictions, "ab") == "c"
    assert expected_text(EXACT, predictions, "abd") == ""
    assert expected_text(EXACT, predictions, "x") == "yz"
    assert expected_text(EXACT, predictions, "q") == ""
    assert expected_text(EXACT, [], "") == ""


def test_copy_ends_where_the_prediction_ends() -> None:
    assert expected_text(EXACT, ["ab", "cd"], "a") == "b"
    assert expected_text(EXACT, ["ab", "cd"], "abc") == ""


def test_start_of_the_prediction_is_trusted_nearly_fully() -> None:
    follower = followed(EXACT, "a" * 100, "")
    expected = START_EVIDENCE / (START_EVIDENCE + 64)
    assert follower.propose(100, 0.0).values[63] == pytest.approx(expected)
    assert len(follower.propose(100, 0.9)) == 28
    assert len(follower.propose(100, 1.0)) == 0
