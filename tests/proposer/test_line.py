from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.drafting.draft import Draft
from optimist_aligner.text.sources import INT32, Sources
from optimist_proposer.core.line import LOST, LineAlgorithm, LineFollower
from tests.proposer.text import NEWLINES, as_text, followed, num_passes, texts, tokens

LINE = LineAlgorithm(NEWLINES)
POEM = "one\ntwo\nthree\nfour\nfive\n"


def observed(predicted: str | list[str], output: str) -> LineFollower:
    follower = followed(LINE, predicted, output)
    assert isinstance(follower, LineFollower)
    return follower


def expected_next(predicted: str | list[str], output: str) -> str | None:
    """Returns what is expected behind `output`; None when the place is lost."""
    follower = observed(predicted, output)
    draft = follower.propose(1000, 0.0)
    assert follower.place != LOST or draft == Draft()
    return None if follower.place == LOST else as_text(draft.token_ids)


def test_first_token_is_first_of_prediction() -> None:
    assert expected_next(POEM, "") == POEM
    assert expected_next(POEM, "on") == "e\ntwo\nthree\nfour\nfive\n"


def test_nothing_matches() -> None:
    assert expected_next(POEM, "x\ny\nz\n") is None


def test_exact_to_the_end() -> None:
    follower = observed(POEM, POEM)
    assert (follower.place, follower.num_losses) == (len(POEM), 0)


def test_output_longer_than_prediction_loses() -> None:
    assert expected_next(POEM, POEM + "s") is None


def test_prediction_longer_than_output() -> None:
    assert expected_next(POEM, "one\ntwo\nth") == "ree\nfour\nfive\n"


def test_first_difference_loses_at_once() -> None:
    assert expected_next(POEM, "one\ntx") is None


def test_changed_line() -> None:
    assert expected_next(POEM, "one\nTWO\n") is None
    assert expected_next(POEM, "one\nTWO\nthr") is None
    assert expected_next(POEM, "one\nTWO\nthree\n") == "four\nfive\n"


def test_inserted_line() -> None:
    assert expected_next(POEM, "one\nnew\ntwo\n") == "three\nfour\nfive\n"


def test_deleted_line() -> None:
    assert expected_next(POEM, "one\nthree\n") == "four\nfive\n"


def test_moved_line() -> None:
    assert expected_next(POEM, "two\n") == "three\nfour\nfive\n"
    assert expected_next(POEM, "two\nthree\none\n") == "two\nthree\nfour\nfive\n"


def test_line_written_twice() -> None:
    assert expected_next(POEM, "one\ntwo\ntwo\n") == "three\nfour\nfive\n"


def test_offset_is_a_place_in_the_prediction_not_the_length_of_the_output() -> None:
    output = "one\na long line that is new\ntwo\n"
    assert observed(POEM, output).place == len("one\ntwo\n")


def test_partial_line_matches() -> None:
    assert observed(POEM, "one\nTWO\nthree\nfou").place == POEM.index("r\nfive")


def test_partial_line_differs() -> None:
    assert expected_next(POEM, "one\nTWO\nthree\nfx") is None


def test_divergence_and_later_lines_in_one_observation() -> None:
    assert expected_next(POEM, "one\nTWO\nthree\nFOUR\nfive\n") == ""
    assert observed(POEM, "one\nTWO\nthree\nFOUR\nfive\n").num_losses == 2


def test_rename_everywhere_stays_lost_where_it_occurs() -> None:
    predicted = "x = 1\nprint(x)\nend\nreturn x\ndone\nbye\n"
    assert expected_next(predicted, "y = 1\nprint(y)\n") is None
    assert expected_next(predicted, "y = 1\nprint(y)\nend\n") == "return x\ndone\nbye\n"
    assert expected_next(predicted, "y = 1\nprint(y)\nend\nreturn y\ndone\n") == "bye\n"


def test_blank_lines() -> None:
    predicted = "a\n\nb\n\nc\n\nd\n"
    assert expected_next(predicted, "a\n\nX\n\n") == "c\n\nd\n"


def test_equal_lines_are_told_apart_by_what_came_before() -> None:
    predicted = "if a\nend\nif b\nend\nif c\nend\nlast\n"
    assert expected_next(predicted, "if a\nend\nif b\nnew\nend\n") == "if c\nend\nlast\n"


def test_equal_lines_prefer_to_go_forward() -> None:
    # The output was in line 4 when it was lost; both "b" have as much in common before them.
    predicted = "a\na\nb\na\nb\nlast\n"
    assert expected_next(predicted, "b\na\na\nc\nb\n") == "last\n"


def test_equal_lines_all_behind_take_the_last() -> None:
    predicted = "r\na\nr\nb\nc\n"
    assert expected_next(predicted, "r\na\nr\nb\nc\nr\n") == "b\nc\n"


def test_last_line_without_newline() -> None:
    assert expected_next("one\ntwo", "ONE\none\ntw") == "o"
    assert expected_next("one\ntwo", "one\ntwo\nthree\n") is None


def test_output_that_ends_an_open_last_line_is_kept_whole() -> None:
    predicted = "b\nab"
    assert expected_next(predicted, "b\nab\nb\n") == "ab"


def test_open_last_line_is_no_completed_line() -> None:
    # Were "a" taken as completed, the "b\n" behind it would look like a predicted line.
    assert expected_next("b\na", "b\nab\n") is None


def test_empty_prediction() -> None:
    assert expected_next("", "") == ""
    assert expected_next("", "a\nb\n") is None


def test_newline_in_the_middle_of_a_token_ends_the_line() -> None:
    assert expected_next("one§two§three§", "ONE§two§") == "three§"
    assert expected_next("one§two§three§", "ONE§two\n") is None


def test_alignment_is_tried_only_when_a_line_is_completed() -> None:
    follower = LINE.prepare(Sources([tokens(POEM)])).follow()
    steps = [("one\n", 0), ("TW", 0), ("O", 0), ("\n", 1), ("thre", 1), ("e\nfour\n", 2)]
    for output, num_alignments in steps:
        follower.observe(tokens(output))
        assert follower.num_alignments == num_alignments


def test_long_line_while_lost_takes_no_more_room_than_the_longest_predicted() -> None:
    assert len(observed(POEM, "x" * 10_000).tail) == len("three\n") + 1
    assert observed(POEM, "x" * 10_000 + "\ntwo\n").place == len("one\ntwo\n")


@given(texts, st.integers(0, 40))
def test_exact_prediction_is_never_lost(text: str, length: int) -> None:
    output = text[:length]
    follower = observed(text, output)
    assert (follower.place, follower.num_losses) == (len(output), 0)


@given(texts, texts)
def test_alignments_are_at_most_the_completed_lines(predicted: str, output: str) -> None:
    follower = observed(predicted, output)
    num_lines = output.count("\n") + output.count("§")
    assert follower.num_losses - 1 <= follower.num_alignments <= num_lines


@given(texts, texts)
def test_aligned_means_the_current_line_equals_the_predicted_one(
    predicted: str, output: str
) -> None:
    follower = observed(predicted, output)
    if follower.place == LOST:
        return
    current = output[max(output.rfind("\n"), output.rfind("§")) + 1 :]
    assert predicted[: follower.place].endswith(current)


DISTINCT = [f"line {number}\n" for number in range(8)]


@given(
    number=st.integers(0, 6),
    edit=st.sampled_from(["changed", "inserted", "deleted"]),
    seed=st.permutations(DISTINCT),
)
def test_one_edited_line_costs_no_more_than_the_next_common_line(
    number: int, edit: str, seed: list[str]
) -> None:
    replacement = {"changed": ["new\n"], "inserted": ["new\n", seed[number]], "deleted": []}
    head, tail = seed[:number], seed[number + 1 :]
    output = "".join([*head, *replacement[edit], tail[0]])
    assert expected_next("".join(seed), output) == "".join(tail[1:])


def test_passes_on_an_example_edit() -> None:
    predicted = "def area(w, h):\n    return w * h\n\n\ndef main():\n    print(area(2, 3))\n"
    output = predicted.replace("w * h", "h * w")
    assert num_passes(LINE, tokens(predicted), tokens(predicted), 64) == 2
    passes = num_passes(LINE, tokens(predicted), tokens(output), 64)
    # One for the head, one per token from the change to the end of the next line, one for the tail.
    assert passes == 1 + len(" * w\n\n") + 1


@pytest.mark.parametrize("size", [1, 3, 64])
def test_prediction_of_many_equal_lines(size: int) -> None:
    follower = LINE.prepare(Sources([array(INT32, [ord("\n")] * 500)])).follow()
    for _ in range(500 // size):
        follower.observe(array(INT32, [ord("\n")] * size))
    assert follower.place == 500 // size * size


def test_second_prediction_is_found_by_its_lines() -> None:
    predictions = ["one\ntwo", "three\nfour\nfive\n", ""]
    assert expected_next(predictions, "") == "one\ntwo"
    assert expected_next(predictions, "three\n") == "four\nfive\n"
    assert expected_next(predictions, "three\nfour\nfive\n") == ""
    assert expected_next(predictions, "two\n") is None
    assert expected_next([], "one\n") is None


def test_prompt_is_no_prediction() -> None:
    follower = LINE.prepare(Sources([tokens("one\n")], tokens("two\nthree\n"))).follow()
    follower.observe(tokens("two\n"))
    assert follower.place == LOST


def test_evidence_is_what_matched_since_the_line_began() -> None:
    follower = observed(POEM, "x\none\ntw")
    values = follower.propose(2, 0.0).values
    assert list(values) == pytest.approx([6 / 7, 6 / 8])
    assert list(follower.propose(9, 0.0).positions) == list(range(6, 15))
    assert len(follower.propose(64, 0.5)) == 6
