from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.following.alignment import CERTAIN_RUN, SURE_RUN, Alignment
from optimist_aligner.model.layout import NUM_RUNS
from optimist_aligner.text.context_index import ContextIndex
from optimist_aligner.text.sources import INT32, SEPARATOR
from tests.aligner.words import codes

PREDICTED = "the quick brown fox jumps over the lazy dog and then sleeps"
OLD = "use old here, and old there, and old too"


class Fold:
    """An alignment, and the text that it folds over."""

    def __init__(self, predicted: Sequence[int], output: Sequence[int] = ()) -> None:
        self.text = [*predicted, SEPARATOR]
        index = ContextIndex(array(INT32, self.text))
        self.alignment = Alignment(self.text, len(self.text), len(self.text), index)
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


def test_nothing_is_found_before_the_first_token_and_none_at_the_end() -> None:
    assert not aligned("").is_found
    assert not aligned("!").is_found
    assert aligned("a", "a").is_found  # the separator's offset, which stands for the end
    assert aligned("ab", "a").run == 0


def test_lost_offset_is_kept_until_tokens_speak_for_another() -> None:
    alignment = aligned(PREDICTED[:9] + "!%")
    assert (alignment.lost_at, alignment.num_lost, alignment.run) == (9, 2, 0)
    assert alignment.offset == 9


def test_two_tokens_as_predicted_are_an_offset() -> None:
    alignment = aligned(PREDICTED[:9] + "!br")
    assert (alignment.offset, alignment.run) == (PREDICTED.index("own"), 2)
    assert alignment.num_lost > 0


def test_an_offset_is_searched_for_only_where_the_output_is_not_as_predicted() -> None:
    assert aligned(PREDICTED[:9]).num_searches == 0
    found, gone_on = aligned("the quick red f"), aligned("the quick red fox jumps")
    assert found.num_searches == gone_on.num_searches
    assert aligned("the quick !").num_searches == 1


def test_it_is_sure_again_after_some_tokens() -> None:
    alignment = aligned(PREDICTED[:9] + "!" + "brown"[: SURE_RUN + 1])
    assert alignment.num_lost == 0
    assert alignment.lost_at == alignment.offset


def test_single_token_is_looked_for_near_the_offset_only() -> None:
    assert aligned("the q!c").offset == PREDICTED.index("k brown")
    assert aligned("the q!z").offset == 5


def test_it_does_not_jump_far_for_two_tokens() -> None:
    far = PREDICTED + "." * 400 + "XY" + "?"
    assert aligned("the quXY", far).offset < len(PREDICTED)
    assert aligned("the quXY?", far[:-1] + "?#").offset == far.index("XY") + 3


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


def test_rule_that_does_not_hold_is_counted() -> None:
    alignment = aligned("use NEW here, and old th", OLD)
    (rule,) = alignment.rules.find(letters(OLD), OLD.index("old"))
    assert (rule.num_sightings, rule.num_passed) == (1, 1)
    assert alignment.offset == OLD.index("ere, and old too")


def test_replacement_that_goes_on_otherwise_is_a_loss() -> None:
    alignment = aligned("use NEW here, and No", OLD)
    assert alignment.pending is None
    assert alignment.num_lost > 0
    assert alignment.lost_at == OLD.index("old there")


def test_what_is_inserted_becomes_a_rule_for_the_token_behind_it() -> None:
    predicted = "say (one, say (two, say (six"
    alignment = aligned("say #(one, say #(tw", predicted)
    (rule,) = alignment.rules.find(letters(predicted), predicted.index("(six"))
    assert rule.replaced == letters("(")
    assert (rule.length, rule.num_sightings, rule.is_pure) == (2, 2, True)
    assert alignment.offset == predicted.index("o, say (six")


def test_among_offsets_behind_the_same_tokens_the_longest_agreement_is_taken() -> None:
    predicted = "XY abcd 1. ABC abcd 2."
    assert aligned("C abcd", predicted).offset == predicted.index(" 2.")
    assert aligned("Y abcd", predicted).offset == predicted.index(" 1.")


def test_rate_and_runs_tell_losses_from_none() -> None:
    assert aligned("the").rate == 0
    without = aligned(PREDICTED[:30])
    assert without.runs == NUM_RUNS - 1
    often = aligned("t!e q!ick br!wn f!x j!mps")
    assert 0 < often.rate < without.rate
    assert often.runs < without.runs


def test_it_counts_what_goes_on_as_predicted_and_has_no_rule() -> None:
    predicted = "use old here, and then again and again be old, as old ones are"
    said = "use NEW here, and then again and "
    alignment = aligned(said, predicted)
    assert alignment.run >= CERTAIN_RUN
    assert alignment.count_following(letters("again be old")) == len("again be ")
    assert alignment.count_following(letters("aga!")) == len("aga")
    alignment = aligned(said + "again be N", predicted)
    assert alignment.count_following(letters("EW")) == 0


@given(
    predicted=st.lists(st.integers(0, 3), min_size=20, max_size=60),
    changes=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 6)), max_size=4),
)
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
