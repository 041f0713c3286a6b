"""The baselines `exact`, `ngram` and `myers`; `suffix` has a file of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Indel

from optimist_aligner.text.sources import LAST_OF_PROMPT, NO_POSITION, Sources
from optimist_bench.predictions.baselines.exact import ExactAlgorithm
from optimist_bench.predictions.baselines.myers import MyersAlgorithm, MyersFollower, MyersReference
from optimist_bench.predictions.baselines.ngram import MAX_EVIDENCE, NgramAlgorithm
from optimist_proposer.core.line import START_EVIDENCE
from tests.proposer.text import as_text, expected_text, followed, texts, tokens

EXACT, NGRAM = ExactAlgorithm(), NgramAlgorithm()


@given(texts, texts)
def test_exact_follows_the_common_prefix_and_no_further(predicted: str, output: str) -> None:
    rest = predicted[len(output) :] if predicted.startswith(output) else ""
    assert expected_text(EXACT, predicted, output) == rest


def test_exact_follows_the_first_prediction_that_the_output_has_not_left() -> None:
    predictions = ["abc", "", "abd", "xyz"]
    outputs = {"": "abc", "ab": "c", "abd": "", "x": "yz", "q": ""}
    assert {each: expected_text(EXACT, predictions, each) for each in outputs} == outputs
    assert expected_text(EXACT, [], "") == ""
    assert expected_text(EXACT, ["ab", "cd"], "abc") == ""


def test_exact_trusts_the_start_of_the_prediction_nearly_fully() -> None:
    follower = followed(EXACT, "a" * 100, "")
    expected = START_EVIDENCE / (START_EVIDENCE + 64)
    assert follower.propose(100, 0.0).values[63] == pytest.approx(expected)
    assert len(follower.propose(100, 0.9)) == 28
    assert len(follower.propose(100, 1.0)) == 0


@pytest.mark.parametrize(
    ("predictions", "output", "expected"),
    [
        # Without output, the beginning of the first prediction.
        (["abc", "xyz"], "", "a"),
        # "c" is found first at the beginning, "bc" after it, "abc" last.
        ("c1bc2abc3", "c", "1"),
        ("c1bc2abc3", "bc", "2"),
        ("c1bc2abc3", "abc", "3"),
        # Four tokens agree with the last position only, but three are looked at.
        ("abc1zabc2", "zabc", "1"),
        # Of several positions the first counts.
        ("ab1ab2", "ab", "1"),
        (["", "ab2", "ab3"], "ab", "2"),
        # At the end of a text nothing follows.
        (["xab", "ab1"], "ab", "1"),
        ("xab", "ab", ""),
        ("xab", "ab7ab", "7"),
        ("abc", "z", ""),
        ([], "", ""),
    ],
)
def test_ngram_follows_the_longest_ngram(
    predictions: str | list[str], output: str, expected: str
) -> None:
    assert expected_text(NGRAM, predictions, output, 1) == expected


def test_ngram_looks_into_predictions_before_prompt_and_output() -> None:
    follower = NGRAM.prepare(Sources([tokens("ab2")], tokens("ab3cd4"))).follow()
    follower.observe(tokens("ab5cd6ab"))
    assert as_text(follower.propose(1, 0.0).token_ids) == "2"
    follower.observe(tokens("cd"))
    draft = follower.propose(9, 0.0)
    assert (as_text(draft.token_ids), list(draft.positions)) == ("4", [LAST_OF_PROMPT])
    draft = followed(NGRAM, "", "xyz!xy").propose(9, 0.0)
    assert (as_text(draft.token_ids), list(draft.positions)) == ("z!xy", [NO_POSITION] * 4)


def test_ngram_takes_all_that_matches_for_evidence() -> None:
    values = followed(NGRAM, "0123456789", "x12345").propose(2, 0.0).values
    assert list(values) == pytest.approx([5 / 6, 5 / 7])
    long = "".join(chr(200 + n) for n in range(200))
    values = followed(NGRAM, long, long[:150]).propose(1, 0.0).values
    assert list(values) == pytest.approx([MAX_EVIDENCE / (MAX_EVIDENCE + 1)])


def aligned(predicted: str, *parts: str) -> MyersFollower:
    reference: MyersReference = MyersAlgorithm().prepare(Sources([tokens(predicted)]))
    follower = reference.follow()
    for part in parts:
        follower.observe(tokens(part))
    return follower


@pytest.mark.parametrize(
    ("predicted", "output", "expected"),
    [
        ("one two three", "one two", " three"),
        # As long as what is left out is longer than what came since, to insert that is shorter.
        ("the quick brown fox jumps", "the quick red f", "own fox jumps"),
        ("the quick brown fox jumps", "the quick red fox", " jumps"),
        ("the quick brown fox jumps", "the very very quick b", "rown fox jumps"),
    ],
)
def test_myers_steps_over_edits(predicted: str, output: str, expected: str) -> None:
    assert as_text(aligned(predicted, output).propose(64, 0.0).token_ids) == expected


@given(st.text("ab\n", max_size=30), st.text("ab\n", max_size=30), st.integers(0, 30))
def test_myers_is_the_shortest_script_however_the_output_is_divided(
    predicted: str, output: str, cut: int
) -> None:
    follower = aligned(predicted, output[:cut], output[cut:])
    shortest = min(Indel.distance(predicted[:end], output) for end in range(len(predicted) + 1))
    assert follower.num_edits == shortest
    assert Indel.distance(predicted[: follower.index], output) == shortest
    whole = aligned(predicted, output)
    names = ("index", "run", "num_edits")
    assert all(getattr(whole, name) == getattr(follower, name) for name in names)
