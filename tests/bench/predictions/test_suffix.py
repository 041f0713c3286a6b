from array import array

import pytest
from hypothesis import given

from optimist_aligner.drafting.draft import Draft
from optimist_aligner.text.sources import INT32, LAST_OF_PROMPT, SEPARATOR, Sources
from optimist_bench.predictions.baselines.suffix import (
    FACTOR,
    MAX_OCCURRENCES,
    GrowingText,
    SourceIndex,
    SuffixAlgorithm,
)
from tests.proposer.text import as_text, expected_text, followed, texts, tokens

SUFFIX = SuffixAlgorithm()


def test_empty_output_begins_as_the_first_prediction() -> None:
    assert expected_text(SUFFIX, ["abc", "xyz"], "") == "abc"


def test_as_many_nodes_as_the_match_is_worth() -> None:
    predicted = "".join(chr(200 + n) for n in range(200))
    draft = followed(SUFFIX, predicted, "x" + predicted[5:8]).propose(100, 0.0)
    assert as_text(draft.token_ids) == predicted[8 : 8 + 3 * FACTOR]
    assert list(draft.positions) == list(range(8, 8 + 3 * FACTOR))
    assert len(followed(SUFFIX, predicted, "x" + predicted[5:8]).propose(7, 0.0)) == 7


def test_frequent_branch_comes_first_and_the_other_is_proposed_too() -> None:
    draft = followed(SUFFIX, "ab1.ab2.ab2.", "ab").propose(3, 0.0)
    assert as_text(draft.token_ids) == "2.1"
    assert list(draft.parents) == [-1, 0, -1]
    assert list(draft.values) == pytest.approx([2 / 3 * 2 / 3, 2 / 3 * 2 / 4, 1 / 3 * 2 / 3])


def test_equally_frequent_branches_come_in_the_order_of_the_text() -> None:
    draft = followed(SUFFIX, ["ab2", "ab1"], "ab").propose(2, 0.0)
    assert (as_text(draft.token_ids), list(draft.positions)) == ("21", [2, 5])


def test_a_chain_is_the_likeliest_path() -> None:
    draft = followed(SuffixAlgorithm(is_chain=True), "ab1.ab2.ab2!ab2!", "ab").propose(9, 0.0)
    assert as_text(draft.token_ids) == "2!ab2!"
    assert list(draft.parents) == [-1, 0, 1, 2, 3, 4]
    assert list(draft.values[:2]) == pytest.approx([3 / 4 * 2 / 3, 2 / 4 * 2 / 4])


def test_prompt_and_output_are_copied_from() -> None:
    follower = SUFFIX.prepare(Sources([tokens("q")], tokens("abc"))).follow()
    follower.observe(tokens("xyz!ab"))
    draft = follower.propose(9, 0.0)
    assert (as_text(draft.token_ids), list(draft.positions)) == ("c", [LAST_OF_PROMPT])
    follower.observe(tokens("xy"))
    assert as_text(follower.propose(3, 0.0).token_ids) == "z!a"


def test_nothing_known() -> None:
    assert followed(SUFFIX, "abc", "z").propose(9, 0.0) == Draft()
    assert followed(SUFFIX, "abc", "c").propose(9, 0.0) == Draft()
    assert followed(SUFFIX, [], "").propose(9, 0.0) == Draft()


@given(texts, texts)
def test_matches_are_all_occurrences_of_each_suffix(predicted: str, output: str) -> None:
    text = GrowingText(SourceIndex(Sources([tokens(predicted)])))
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


def test_of_many_places_the_last_count() -> None:
    many = 3 * MAX_OCCURRENCES
    text = GrowingText(SourceIndex(Sources([array(INT32, [7]) * many])))
    text.extend(array(INT32, [7]) * 2)
    assert [(match.length, len(match.indices)) for match in text.matches(2)] == [
        (1, MAX_OCCURRENCES),
        (2, MAX_OCCURRENCES),
    ]
    # The last occurrence is the first output token, with the second after it.
    assert text.matches(1)[0].indices[-1] == many + 3
