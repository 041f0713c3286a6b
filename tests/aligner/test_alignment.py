"""The cursor is where the founding example expects it, and learns what is said instead."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_aligner.following.alignment import CERTAIN_RUN, Alignment
from optimist_aligner.text.context_index import ContextIndex
from optimist_aligner.text.sources import SEPARATOR
from tests.aligner.words import codes

PREDICTED = "the quick brown fox jumps over the lazy dog and then sleeps"
OLD = "use old here, and old there, and old too"


class Fold:
    """An alignment, and the text that it folds over."""

    def __init__(self, predicted: Sequence[int], output: Sequence[int] = ()) -> None:
        sources = [*predicted, SEPARATOR]
        self.text, index = list(sources), ContextIndex(sources)
        self.alignment = Alignment(self.text, len(sources), len(sources), index)
        self.say(output)

    def say(self, output: Sequence[int]) -> None:
        for token_id in output:
            self.text.append(token_id)
            self.alignment.advance(token_id)

    def state(self) -> tuple[object, ...]:
        names = ("offset", "run", "lost_at", "num_lost", "pending", "rate", "runs", "num_searches")
        values = (getattr(self.alignment, name) for name in names)
        return (*values, self.alignment.rules.by_token)


def letters(text: str) -> list[int]:
    return codes(text).tolist()


def aligned(output: str, predicted: str = PREDICTED) -> Alignment:
    return Fold(letters(predicted), letters(output)).alignment


FAR = PREDICTED + "." * 400 + "XY?#"
EQUAL = "XY abcd 1. ABC abcd 2."


@pytest.mark.parametrize(
    ("predicted", "output", "behind", "num_lost"),
    [
        pytest.param(PREDICTED, "the quick!%", "the quick", 2, id="a lost offset is kept"),
        pytest.param(PREDICTED, "the quick!br", "the quick br", 3, id="two tokens are an offset"),
        pytest.param(PREDICTED, "the quick!brow", "the quick brow", 0, id="sure again"),
        pytest.param(PREDICTED, "the q!c", "the quic", 2, id="a single token near the offset"),
        pytest.param(PREDICTED, "the q!z", "the q", 2, id="a single token far from it"),
        pytest.param(FAR, "the quXY", "the qu", 2, id="no far jump for two tokens"),
        pytest.param(FAR, "the quXY?", FAR[:-1], 3, id="but for three"),
        pytest.param(EQUAL, "C abcd", EQUAL[:-3], 0, id="the longest agreement is the second"),
        pytest.param(EQUAL, "Y abcd", EQUAL[:7], 0, id="the longest agreement is the first"),
    ],
)
def test_where_the_output_is_in_the_prediction(
    predicted: str, output: str, behind: str, num_lost: int
) -> None:
    alignment = aligned(output, predicted)
    assert (alignment.offset, alignment.num_lost) == (len(behind), num_lost)


def test_what_is_said_instead_becomes_a_rule_that_is_expected_to_hold_again() -> None:
    alignment = aligned("use NEW here", OLD)
    (rule,) = alignment.rules.find(letters(OLD), OLD.index("old"))
    assert rule.replaced == letters("old")
    assert (rule.length, rule.num_sightings) == (3, 1)
    alignment = aligned("use NEW here, and N", OLD)
    assert alignment.pending is not None
    assert alignment.pending[1:] == (1, OLD.index(" there"))
    alignment = aligned("use NEW here, and NEW t", OLD)
    assert alignment.pending is None
    assert alignment.offset == OLD.index("here, and old too")
    (rule,) = alignment.rules.find(letters(OLD), OLD.index("old"))
    assert rule.num_sightings == 2


@given(
    predicted=st.lists(st.integers(0, 3), min_size=20, max_size=60),
    changes=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 6)), max_size=4),
)
@settings(max_examples=25)
def test_what_is_followed_in_one_step_is_as_if_token_by_token(
    predicted: list[int], changes: list[tuple[int, int]]
) -> None:
    output = list(predicted)
    for offset, token_id in changes:
        output[offset % len(output)] = token_id
    stepwise, by_runs = Fold(predicted, output), Fold(predicted)
    rest = output
    while rest:
        is_certain = by_runs.alignment.run >= CERTAIN_RUN
        count = by_runs.alignment.count_following(rest) if is_certain else 0
        by_runs.text.extend(rest[:count])
        if count:
            by_runs.alignment.follow(count)
        by_runs.say(rest[count : count + 1])
        rest = rest[count + 1 :]
    assert by_runs.state() == stepwise.state()
