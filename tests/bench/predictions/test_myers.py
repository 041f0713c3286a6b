from array import array

from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Indel

from optimist_aligner.text.sources import Sources
from optimist_bench.predictions.baselines.myers import MyersAlgorithm, MyersFollower, MyersReference

texts = st.text("ab\n", max_size=30)


def tokens(text: str) -> "array[int]":
    return array("i", [ord(letter) for letter in text])


def following(predicted: str, *parts: str) -> MyersFollower:
    reference: MyersReference = MyersAlgorithm().prepare(Sources([tokens(predicted)]))
    follower = reference.follow()
    for part in parts:
        follower.observe(tokens(part))
    return follower


def proposed(follower: MyersFollower) -> str:
    return "".join(map(chr, follower.propose(64, 0.0).token_ids))


def test_an_exact_prediction_is_proposed_to_its_end() -> None:
    assert proposed(following("one two three")) == "one two three"
    assert proposed(following("one two three", "one", " two")) == " three"
    assert proposed(following("one", "one")) == ""


def test_edits_are_stepped_over() -> None:
    predicted = "the quick brown fox jumps"
    # As long as what is left out is longer than what came since, to insert that is shorter.
    assert proposed(following(predicted, "the quick red f")) == "own fox jumps"
    assert proposed(following(predicted, "the quick red fox")) == " jumps"
    assert proposed(following(predicted, "the brown f")) == "ox jumps"
    assert proposed(following(predicted, "the very very quick b")) == "rown fox jumps"


def test_there_may_be_no_prediction() -> None:
    reference = MyersAlgorithm().prepare(Sources([], tokens("abc")))
    follower = reference.follow()
    follower.observe(tokens("ab"))
    assert len(follower.propose(8, 0.0)) == 0


@given(texts, texts, st.integers(0, 30))
def test_it_is_the_shortest_script_however_the_output_is_divided(
    predicted: str, output: str, cut: int
) -> None:
    follower = following(predicted, output[:cut], output[cut:])
    shortest = min(Indel.distance(predicted[:end], output) for end in range(len(predicted) + 1))
    assert follower.num_edits == shortest
    assert Indel.distance(predicted[: follower.place], output) == shortest
    whole = following(predicted, output)
    assert (whole.place, whole.run, whole.num_edits) == (
        follower.place,
        follower.run,
        follower.num_edits,
    )
