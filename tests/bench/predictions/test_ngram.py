import pytest

from optimist_aligner.drafting.draft import Draft
from optimist_aligner.text.sources import LAST_OF_PROMPT, NO_POSITION, Sources
from optimist_bench.predictions.baselines.ngram import MAX_EVIDENCE, NgramAlgorithm
from tests.proposer.text import as_text, expected_text, followed, tokens

NGRAM = NgramAlgorithm()


def test_empty_output_begins_as_the_first_prediction() -> None:
    assert expected_text(NGRAM, ["abc", "xyz"], "") == "abc"


def test_longest_ngram_counts() -> None:
    # "c" is found first at the beginning, "bc" behind it, "abc" last.
    assert expected_text(NGRAM, "c1bc2abc3", "c", 1) == "1"
    assert expected_text(NGRAM, "c1bc2abc3", "bc", 1) == "2"
    assert expected_text(NGRAM, "c1bc2abc3", "abc", 1) == "3"
    # Four tokens agree with the last place only, but three are looked at.
    assert expected_text(NGRAM, "abc1zabc2", "zabc", 1) == "1"


def test_first_place_counts_and_predictions_before_prompt_and_output() -> None:
    assert expected_text(NGRAM, "ab1ab2", "ab", 1) == "1"
    assert expected_text(NGRAM, ["", "ab2", "ab3"], "ab", 1) == "2"
    follower = NGRAM.prepare(Sources([tokens("ab2")], tokens("ab3cd4"))).follow()
    follower.observe(tokens("ab5cd6ab"))
    assert as_text(follower.propose(1, 0.0).token_ids) == "2"
    follower.observe(tokens("cd"))
    draft = follower.propose(9, 0.0)
    assert (as_text(draft.token_ids), list(draft.positions)) == ("4", [LAST_OF_PROMPT])


def test_output_is_copied_from_too() -> None:
    draft = followed(NGRAM, "", "xyz!xy").propose(9, 0.0)
    assert as_text(draft.token_ids) == "z!xy"
    assert list(draft.positions) == [NO_POSITION] * 4


def test_ngram_at_the_end_of_a_text_is_not_found_there() -> None:
    assert expected_text(NGRAM, ["xab", "ab1"], "ab") == "1"
    assert expected_text(NGRAM, "xab", "ab") == ""
    assert expected_text(NGRAM, "xab", "ab7ab") == "7ab"


def test_nothing_known() -> None:
    assert followed(NGRAM, "abc", "z").propose(9, 0.0) == Draft()
    assert followed(NGRAM, [], "").propose(9, 0.0) == Draft()


def test_evidence_is_all_that_matches_before_the_place() -> None:
    predicted = "0123456789"
    values = followed(NGRAM, predicted, "x12345").propose(2, 0.0).values
    assert list(values) == pytest.approx([5 / 6, 5 / 7])
    long = "".join(chr(200 + n) for n in range(200))
    values = followed(NGRAM, long, long[:150]).propose(1, 0.0).values
    assert list(values) == pytest.approx([MAX_EVIDENCE / (MAX_EVIDENCE + 1)])
