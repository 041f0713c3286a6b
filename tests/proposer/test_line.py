from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_proposer.core.algorithm import Progress
from optimist_proposer.core.cursor import LOST, Cursor
from optimist_proposer.core.line import LineAlgorithm
from optimist_proposer.core.lines import INT32
from tests.proposer.text import NEWLINES, num_passes, observed, texts, tokens

LINE = LineAlgorithm(NEWLINES)
POEM = "one\ntwo\nthree\nfour\nfive\n"


def expected_next(predicted: str, output: str) -> str | None:
    """Returns what is expected behind `output`; None when the cursor is lost."""
    cursor = observed(LINE, predicted, output)
    return None if cursor.offset == LOST else predicted[cursor.offset :]


def test_first_token_is_first_of_prediction() -> None:
    assert expected_next(POEM, "") == POEM
    assert expected_next(POEM, "on") == "e\ntwo\nthree\nfour\nfive\n"


def test_nothing_matches() -> None:
    assert expected_next(POEM, "x\ny\nz\n") is None
    assert observed(LINE, POEM, "x\ny\nz\n").epoch == 0


def test_exact_to_the_end() -> None:
    cursor = observed(LINE, POEM, POEM)
    assert (cursor.offset, cursor.epoch) == (len(POEM), 0)


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
    cursor = observed(LINE, POEM, output)
    assert cursor.offset == len("one\ntwo\n")
    assert cursor.num_known == len(output)


def test_partial_line_matches() -> None:
    cursor = observed(LINE, POEM, "one\nTWO\nthree\nfou")
    assert cursor.offset == POEM.index("r\nfive")


def test_partial_line_differs() -> None:
    assert expected_next(POEM, "one\nTWO\nthree\nfx") is None


def test_divergence_and_later_lines_in_one_observation() -> None:
    assert expected_next(POEM, "one\nTWO\nthree\nFOUR\nfive\n") == ""
    assert observed(LINE, POEM, "one\nTWO\nthree\nFOUR\nfive\n").epoch == 2


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
    prediction, cursor = LINE.prepare(tokens(POEM)), Cursor()
    assert LINE.observe(prediction, cursor, tokens("one\n")) == Progress(1, 0, 0)
    assert LINE.observe(prediction, cursor, tokens("TW")) == Progress(0, 0, 1)
    assert LINE.observe(prediction, cursor, tokens("O")) == Progress(0, 0, 0)
    assert LINE.observe(prediction, cursor, tokens("\n")) == Progress(1, 1, 0)
    assert LINE.observe(prediction, cursor, tokens("thre")) == Progress(0, 0, 0)
    assert LINE.observe(prediction, cursor, tokens("e\nfour\n")) == Progress(2, 1, 0)


def test_long_line_while_lost_takes_no_more_room_than_the_longest_predicted() -> None:
    cursor = observed(LINE, POEM, "x" * 10_000)
    assert len(cursor.tail) == len("three\n") + 1
    assert observed(LINE, POEM, "x" * 10_000 + "\ntwo\n").offset == len("one\ntwo\n")


@given(texts, texts, st.lists(st.integers(0, 40), max_size=5))
def test_division_into_observations_does_not_matter(
    predicted: str, output: str, cuts: list[int]
) -> None:
    prediction, cursor = LINE.prepare(tokens(predicted)), Cursor()
    edges = sorted({0, len(output), *(cut for cut in cuts if cut < len(output))})
    for start, end in pairwise(edges):
        LINE.observe(prediction, cursor, tokens(output[start:end]))
    assert cursor == observed(LINE, predicted, output)


@given(texts, st.integers(0, 40))
def test_exact_prediction_is_never_lost(text: str, length: int) -> None:
    output = text[:length]
    cursor = observed(LINE, text, output)
    assert (cursor.offset, cursor.epoch) == (len(output), 0)


@given(texts, texts)
def test_alignments_and_epochs_are_at_most_the_completed_lines(predicted: str, output: str) -> None:
    prediction, cursor = LINE.prepare(tokens(predicted)), Cursor()
    progress = LINE.observe(prediction, cursor, tokens(output))
    num_lines = output.count("\n") + output.count("§")
    assert progress.num_lines == num_lines
    assert cursor.epoch <= progress.num_alignments <= num_lines
    assert progress.num_losses <= cursor.epoch + 1


@given(texts, texts)
def test_aligned_means_the_current_line_equals_the_predicted_one(
    predicted: str, output: str
) -> None:
    cursor = observed(LINE, predicted, output)
    if cursor.offset == LOST:
        return
    current = output[max(output.rfind("\n"), output.rfind("§")) + 1 :]
    assert predicted[: cursor.offset].endswith(current)


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
    assert num_passes(LINE, predicted, predicted, 64) == 2
    passes = num_passes(LINE, predicted, output, 64)
    # One for the head, one per token from the change to the end of the next line, one for the tail.
    assert passes == 1 + len(" * w\n\n") + 1


@pytest.mark.parametrize("size", [1, 3, 64])
def test_prediction_of_many_equal_lines(size: int) -> None:
    cursor, prediction = Cursor(), LINE.prepare(array(INT32, [ord("\n")] * 500))
    for _ in range(500 // size):
        LINE.observe(prediction, cursor, array(INT32, [ord("\n")] * size))
    assert cursor.offset == 500 // size * size
