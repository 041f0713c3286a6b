"""The baselines `exact`, `ngram`, `myers` and `suffix`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Indel

from optimist_aligner.text.sources import SEPARATOR, Sources
from optimist_bench.predictions.baselines import Baseline
from optimist_bench.predictions.baselines.exact import ExactFollower
from optimist_bench.predictions.baselines.myers import MyersFollower
from optimist_bench.predictions.baselines.ngram import NgramFollower
from optimist_bench.predictions.baselines.suffix import GrowingText
from tests.proposer.text import as_text, expected_text, texts, tokens

EXACT, NGRAM = Baseline(ExactFollower), Baseline(NgramFollower)


@given(st.lists(texts, max_size=3), texts, st.booleans(), st.integers(0, 40))
def test_exact_follows_the_first_prediction_that_the_output_has_not_left(
    predictions: list[str], output: str, is_copied: bool, cut: int
) -> None:
    if predictions and is_copied:
        output = predictions[-1][:cut]
    rests = [text[len(output) :] for text in predictions if text.startswith(output)]
    assert expected_text(EXACT, predictions, output) == (rests or [""])[0]


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


def aligned(predicted: str, *parts: str) -> MyersFollower:
    follower = MyersFollower(Sources([tokens(predicted)]))
    for part in parts:
        follower.observe(tokens(part))
    return follower


@given(st.text("ab\n", max_size=30), st.text("ab\n", max_size=30), st.integers(0, 30))
def test_myers_is_the_shortest_script_however_the_output_is_divided(
    predicted: str, output: str, cut: int
) -> None:
    follower = aligned(predicted, output[:cut], output[cut:])
    shortest = min(Indel.distance(predicted[:end], output) for end in range(len(predicted) + 1))
    assert follower.num_edits == shortest
    # What is left of the prediction then is proposed.
    assert as_text(follower.propose(64, 0.0).token_ids) == predicted[follower.index :]
    assert Indel.distance(predicted[: follower.index], output) == shortest
    whole = aligned(predicted, output)
    names = ("index", "run", "num_edits")
    assert all(getattr(whole, name) == getattr(follower, name) for name in names)


@given(texts, texts)
def test_matches_are_all_occurrences_of_each_suffix(predicted: str, output: str) -> None:
    text = GrowingText(Sources([tokens(predicted)]))
    text.extend(tokens(output))
    known = [SEPARATOR, *tokens(predicted), SEPARATOR, *tokens(output)]
    expected: dict[int, list[int]] = {}
    for length in range(1, len(output) + 1):
        indices = [
            index
            for index in range(length, len(known))
            if known[index - length : index] == known[-length:] and known[index] != SEPARATOR
        ]
        if indices:
            expected[length] = indices
    found = {match.length: list(match.indices) for match in text.matches(1000)}
    for length, indices in expected.items():
        # The suffixes that end at the same indices are one match.
        longest = max(other for other in expected if expected[other] == indices)
        assert found[longest] == indices, length
    assert len(found) == len({tuple(indices) for indices in expected.values()})
