"""The line algorithm finds its position again where the founding document says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import LCSseq

from optimist_aligner.drafting.draft import Draft
from optimist_proposer.core import line
from optimist_proposer.core.line import LOST, LineAlgorithm, LineFollower, common_length
from tests.proposer.text import NEWLINES, as_text, followed, texts

LINE = LineAlgorithm(NEWLINES)
POEM = "one\ntwo\nthree\nfour\nfive\n"
SEVERAL = ["one\ntwo", "three\nfour\nfive\n", ""]


def observed(predicted: str | list[str], output: str) -> LineFollower:
    follower = followed(LINE, predicted, output)
    assert isinstance(follower, LineFollower)
    return follower


EQUAL_LINES = "if a\nend\nif b\nend\nif c\nend\nlast\n"
RENAMED = "x = 1\nprint(x)\nend\nreturn x\ndone\nbye\n"


@pytest.mark.parametrize(
    ("predicted", "output", "expected"),
    [
        pytest.param(POEM, "", POEM, id="the first token is the prediction's first"),
        pytest.param(POEM, "one\ntx", None, id="the first difference loses at once"),
        pytest.param(POEM, "one\nTWO\nthr", None, id="the line after it is not complete"),
        pytest.param(POEM, "one\ntwo\ntwo\n", "three\nfour\nfive\n", id="a line twice"),
        pytest.param(POEM, "one\nTWO\nthree\nFOUR\nfive\n", "", id="two differences at once"),
        pytest.param(RENAMED, "y = 1\nprint(y)\nend\nreturn y\ndone\n", "bye\n", id="renamed"),
        pytest.param(
            EQUAL_LINES,
            "if a\nend\nif b\nnew\nend\n",
            "if c\nend\nlast\n",
            id="equal lines are distinguished by what came before",
        ),
        # The output was in line 4 when it was lost; both "b" have as much in common before them.
        pytest.param("a\na\nb\na\nb\nlast\n", "b\na\na\nc\nb\n", "last\n", id="forward"),
        pytest.param("r\na\nr\nb\nc\n", "r\na\nr\nb\nc\nr\n", "b\nc\n", id="all are before"),
        pytest.param("one\ntwo", "ONE\none\ntw", "o", id="a last line without newline"),
        pytest.param("b\nab", "b\nab\nb\n", "ab", id="an output that ends it is kept whole"),
        # Were "a" taken as completed, the "b\n" after it would look like a predicted line.
        pytest.param("b\na", "b\nab\n", None, id="an open last line is no completed one"),
        pytest.param("one§two§three§", "ONE§two§", "three§", id="a newline within a token"),
        pytest.param(POEM, "x" * 10_000 + "\ntwo\n", "three\nfour\nfive\n", id="a longer line"),
        pytest.param(POEM, "x" * 10_000, None, id="a longer line that is not complete"),
        pytest.param(SEVERAL, "three\n", "four\nfive\n", id="the second by its lines"),
        pytest.param(SEVERAL, "two\n", None, id="the end of the first is no line"),
        pytest.param([], "one\n", None, id="no prediction"),
    ],
)
def test_what_is_expected_after_an_output(
    predicted: str | list[str], output: str, expected: str | None
) -> None:
    """None is expected where the position is lost."""
    follower = observed(predicted, output)
    draft = follower.propose(1000, 0.0)
    assert follower.index != LOST or draft == Draft()
    assert (None if follower.index == LOST else as_text(draft.token_ids)) == expected
    # Of a line that is too long to be predicted only so much is kept.
    assert len(follower.tail) <= max(map(len, "".join(predicted).split("\n"))) + 2


@given(texts, st.integers(0, 40))
def test_exact_prediction_is_never_lost(text: str, length: int) -> None:
    output = text[:length]
    follower = observed(text, output)
    assert (follower.index, follower.num_losses) == (len(output), 0)


@given(texts, texts)
def test_aligned_means_the_current_line_equals_the_predicted_one(
    predicted: str, output: str
) -> None:
    follower = observed(predicted, output)
    if follower.index == LOST:
        return
    current = output[max(output.rfind("\n"), output.rfind("§")) + 1 :]
    assert predicted[: follower.index].endswith(current)


def test_evidence_is_what_matched_since_the_line_began() -> None:
    follower = observed(POEM, "x\none\ntw")
    values = follower.propose(2, 0.0).values
    assert list(values) == pytest.approx([6 / 7, 6 / 8])
    assert list(follower.propose(9, 0.0).positions) == list(range(6, 15))
    assert len(follower.propose(64, 0.5)) == 6


few_items = st.lists(st.integers(0, 5), max_size=80)


@given(few_items, few_items)
def test_difflib_takes_over_where_rapidfuzz_is_missing(one: list[int], other: list[int]) -> None:
    longest = common_length(one, other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line, "HAS_RAPIDFUZZ", False)
        assert common_length(one, one) == len(one)
        assert common_length(one, other) <= longest == LCSseq.similarity(one, other)
        assert (common_length(one, other) > 0) == (longest > 0)
