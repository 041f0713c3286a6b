"""Short substitutions become rules, bounded in length and number."""

import pytest

from optimist_aligner.following.rule import MOST_RULES_PER_TOKEN, MOST_TOKENS, Rule, Rules
from optimist_aligner.model.layout import NUM_SIGHTINGS

# Predicted 10 11 12 10 11, separator; said 20 21 22 20 23.
TEXT = [10, 11, 12, 10, 11, -1, 20, 21, 22, 20, 23]
LONG = [*range(50), -1, *range(50, 100)]


def test_beginning_alone_is_not_what_is_replaced() -> None:
    rules = Rules()
    rules.learn(TEXT, 0, 3, 6, 7)
    assert rules.find(TEXT, 0)
    assert not rules.find(TEXT, 3)


def test_other_replacements_of_the_same_are_rules_of_their_own_and_the_last_ones_stay() -> None:
    text = [10, -1, *range(20, 20 + MOST_RULES_PER_TOKEN + 1)]
    rules = Rules()
    for offset in range(2, len(text)):
        rules.learn(text, 0, 1, offset, offset + 1)
    offsets = [rule.offset for rule in rules.find(text, 0)]
    assert offsets == list(range(3, 3 + MOST_RULES_PER_TOKEN))


def test_what_is_left_out_is_a_rule_with_the_token_behind_it() -> None:
    text = [10, 11, 12, -1, 10, 12]
    rules = Rules()
    rules.learn(text, 1, 2, 5, 5)
    (rule,) = rules.find(text, 1)
    assert (rule.replaced, rule.offset, rule.length, rule.is_pure) == ([11, 12], 5, 1, True)


@pytest.mark.parametrize(
    ("text", "replaced", "said", "is_learned"),
    [
        pytest.param(TEXT, (3, 5), (0, 2), False, id="the same"),
        pytest.param(TEXT, (4, 6), (6, 7), False, id="across the end of a text"),
        pytest.param(TEXT, (5, 5), (6, 8), False, id="before the end of a text"),
        pytest.param(LONG, (0, MOST_TOKENS), (51, 51 + MOST_TOKENS), True, id="as long as it may"),
        pytest.param(LONG, (0, MOST_TOKENS + 1), (51, 52), False, id="too many are replaced"),
        pytest.param(LONG, (0, 1), (51, 52 + MOST_TOKENS), False, id="too many are said"),
    ],
)
def test_what_is_no_short_substitution_is_not_learned(
    text: list[int], replaced: tuple[int, int], said: tuple[int, int], is_learned: bool
) -> None:
    rules = Rules()
    rules.learn(text, *replaced, *said)
    assert bool(rules.by_token) == is_learned


def test_sightings_have_a_bucket_for_each_pair_of_counts() -> None:
    buckets = {
        Rule([1], 2, 1, is_pure, num_sightings=seen, num_passed=passed).sightings
        for is_pure in (False, True)
        for seen in range(1, 9)
        for passed in range(9)
    }
    assert buckets == set(range(NUM_SIGHTINGS))
