"""A request that is too large is refused, and the reason names its field."""

import pytest

from optimist_proposer.core.messages import LimitCheck
from tests.proposer.holding import LIMITS, VOCABULARY
from tests.proposer.text import tokens

CHECK = LimitCheck(LIMITS, VOCABULARY)


@pytest.mark.parametrize(
    ("predictions", "prompt", "reason"),
    [
        (["a"] * 4, "", r"num_predicted_tokens: 4 predictions, more than max_predictions \(3\)"),
        (["a" * 60, "b" * 41], "", r"predicted_token_ids: 101 tokens, .*max_prediction_tokens"),
        (["\n" * 50, "a\n"], "", r"predicted_token_ids: 51 lines, .*max_prediction_lines \(50\)"),
        (["é" * 80], "", r"predicted_token_ids: 160 bytes of text, .*max_prediction_bytes"),
        (["a", "\uffff"], "", "predicted_token_ids: token 65535 is not in the vocabulary"),
        (["a"], "\uffff", "prompt_token_ids: token 65535 is not in the vocabulary"),
    ],
)
def test_what_is_too_large_is_named(predictions: list[str], prompt: str, reason: str) -> None:
    fault = CHECK.fault([tokens(text) for text in predictions], tokens(prompt))
    with pytest.raises(ValueError, match=reason):
        raise ValueError(fault)


@pytest.mark.parametrize("texts", [["a" * 50, "b" * 50, ""], ["é" * 75], ["\n" * 49 + "§"]])
def test_what_just_fits_is_no_fault(texts: list[str]) -> None:
    assert CHECK.fault([tokens(text) for text in texts], tokens("c" * 999)) is None


def test_time_grows_with_the_output() -> None:
    assert CHECK.delay(9.9, 0) is None
    assert "max_alignment_ms (10000)" in (CHECK.delay(10.1, 0) or "")
    assert CHECK.delay(19.9, 1000) is None
    assert CHECK.delay(20.1, 1000) is not None
