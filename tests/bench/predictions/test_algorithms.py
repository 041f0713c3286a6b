"""What holds for every algorithm that proposers offer, and for the baselines."""

from array import array
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.algorithm import Algorithm
from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.text.sources import INT32, NO_POSITION, Sources
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_bench.predictions.command import METHODS

# Words that are in each other, line ends, indentation, half a character: what real tokens are like.
TOKEN_TEXTS = ["a", "b", "ab", " a", "\n", "\n  ", "  ", "é", "漢", "\ufffd", "_", "(", ")", "old"]
VOCABULARY = Vocabulary(TOKEN_TEXTS)
# Myers takes too long for huge texts: its search grows with the square of the edits.
NAMES = [name for name in METHODS if name != "myers"]

token_lists = st.lists(st.integers(0, len(TOKEN_TEXTS) - 1), max_size=60)
repetitive_lists = st.lists(st.integers(0, 4), max_size=60)
some_tokens = token_lists | repetitive_lists
each_algorithm = pytest.mark.parametrize("name", NAMES)


@cache
def make(name: str) -> Algorithm:
    return METHODS[name](VOCABULARY)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Sources, "array[int]"]:
    """Predictions and prompt, and an output that often takes from the first prediction."""
    predictions = [draw(some_tokens) for _ in range(draw(st.integers(0, 3)))]
    output = draw(some_tokens)
    num_own = draw(st.integers(0, 60))
    if predictions and num_own < 30:
        first = predictions[0]
        start, end = draw(st.integers(0, len(first))), draw(st.integers(0, len(first)))
        output = [*first[:start], *output[:num_own], *first[end:]]
    sources = Sources(
        [array(INT32, prediction) for prediction in predictions], array(INT32, draw(some_tokens))
    )
    return sources, array(INT32, output)


def proposed(
    algorithm: Algorithm,
    sources: Sources,
    output: "array[int]",
    max_tokens: int = 64,
    min_value: float = 0.0,
) -> Draft:
    follower = algorithm.prepare(sources).follow()
    follower.observe(output)
    return follower.propose(max_tokens, min_value)


def assert_is_tree_by_value(draft: Draft, max_tokens: int, min_value: float) -> None:
    num_nodes = len(draft)
    assert num_nodes <= max_tokens
    assert len(draft.parents) == len(draft.positions) == len(draft.values) == num_nodes
    assert all(NO_PARENT <= parent < node for node, parent in enumerate(draft.parents))
    assert all(later <= earlier for earlier, later in pairwise(draft.values))
    assert all(min_value <= value <= 1 for value in draft.values)
    siblings = list(zip(draft.parents, draft.token_ids, strict=True))
    assert len(set(siblings)) == num_nodes
    assert all(token_id >= 0 for token_id in draft.token_ids)


@each_algorithm
@given(
    request_=requests(),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    max_tokens=st.integers(1, 64),
    min_value=st.floats(0, 1),
)
def test_division_into_observations_and_proposals_between_do_not_matter(
    name: str,
    request_: tuple[Sources, "array[int]"],
    cuts: list[int],
    max_tokens: int,
    min_value: float,
) -> None:
    algorithm, (sources, output) = make(name), request_
    reference = algorithm.prepare(sources)
    follower = reference.follow()
    edges = sorted({0, len(output), *(cut for cut in cuts if cut < len(output))})
    for start, end in pairwise(edges):
        follower.observe(output[start:end])
        follower.propose(max_tokens, min_value)
    other = reference.follow()
    for token_id in output:
        other.observe(array(INT32, [token_id]))
    draft = proposed(algorithm, sources, output, max_tokens, min_value)
    assert follower.propose(max_tokens, min_value) == draft
    assert follower.propose(max_tokens, min_value) == draft
    assert other.propose(max_tokens, min_value) == draft
    assert follower.num_alignments == other.num_alignments <= len(output)


@each_algorithm
@given(request_=requests(), max_tokens=st.integers(1, 80), min_value=st.floats(0, 1))
def test_drafts_are_trees_with_the_likeliest_nodes_first(
    name: str, request_: tuple[Sources, "array[int]"], max_tokens: int, min_value: float
) -> None:
    sources, output = request_
    draft = proposed(make(name), sources, output, max_tokens, min_value)
    assert_is_tree_by_value(draft, max_tokens, min_value)
    stands = dict(zip(sources.positions, sources.token_ids, strict=True))
    for token_id, position in zip(draft.token_ids, draft.positions, strict=True):
        assert position == NO_POSITION or stands[position] == token_id


@each_algorithm
def test_references_are_shared_and_say_their_size(name: str) -> None:
    algorithm = make(name)
    small = algorithm.prepare(Sources([array(INT32, range(10))]))
    large = algorithm.prepare(Sources([array(INT32, range(10)) * 3000]))
    assert 0 < small.num_bytes < large.num_bytes
    first, second = small.follow(), small.follow()
    expected = small.follow().propose(8, 0.0)
    first.observe(array(INT32, [9, 9]))
    draft = second.propose(8, 0.0)
    assert draft == expected
    # Changing a proposal changes nothing.
    draft.token_ids[:] = array(INT32, [0])
    draft.values[:] = array("f")
    assert second.propose(8, 0.0) == expected
