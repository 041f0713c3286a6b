"""The tree has the likeliest nodes of all that there are, compared with their enumeration."""

import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.drafting.tree import LEAST_OPEN
from optimist_aligner.follower import Aligner, AutoFollower
from optimist_aligner.model.layout import BLOCKS, NUM_WEIGHTS, START
from optimist_aligner.model.weights import Weights, load_weights
from optimist_aligner.text.sources import INT32
from optimist_aligner.text.vocabulary import Vocabulary
from tests.aligner.enumeration import Enumeration
from tests.aligner.words import edits, observed

VOCABULARY = Vocabulary([" a", "b", "\n", "(", "1", " "])
PACKAGED = load_weights(is_rewrite=True).logits


def some_logits(seed: int) -> list[float]:
    """Returns random weights; what goes on is likelier than not, so that trees are deep."""
    generator = random.Random(seed)
    logits = [generator.gauss(0, 0.7) for _ in range(NUM_WEIGHTS)]
    for kind in range(BLOCKS["next_logit"].num_weights):
        logits[START["next_logit"] + kind] = generator.uniform(0, 1)
    return logits


weights = st.integers(0, 30).map(some_logits) | st.just(PACKAGED)
Request = tuple[list[list[int]], list[int], list[int]]
requests = edits(st.integers(0, len(VOCABULARY.token_texts) - 1), 20)


def follow(request: Request, logits: list[float], *, is_chain: bool = False) -> AutoFollower:
    return observed(Aligner(VOCABULARY, Weights(logits), is_chain=is_chain), *request)


def paths(draft: Draft) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token_id, parent in zip(draft.token_ids, draft.parents, strict=True):
        found.append((*(found[parent] if parent != NO_PARENT else ()), token_id))
    return found


@given(edit=requests, logits=weights, max_tokens=st.integers(1, 40))
@settings(max_examples=30)
def test_tree_is_the_best_first_part_of_all_that_there_is(
    edit: Request, logits: list[float], max_tokens: int
) -> None:
    follower, least = follow(edit, logits), 1e-3
    every = Enumeration(follower, logits, least).values
    draft = follower.propose(max_tokens, least)
    if near_bound(every, least):
        return
    assert len(draft) == min(max_tokens, len(every))
    best = sorted(every.values(), reverse=True)[: len(draft)]
    assert list(draft.values) == pytest.approx(best, rel=1e-4)
    for path, value in zip(paths(draft), draft.values, strict=True):
        assert value == pytest.approx(every[path], rel=1e-4)


@given(edit=requests, logits=weights, max_tokens=st.integers(1, 40))
@settings(max_examples=20)
def test_chain_goes_to_the_likeliest_node_of_the_tree_each_time(
    edit: Request, logits: list[float], max_tokens: int
) -> None:
    tree = follow(edit, logits).propose(10_000, 1e-2)
    draft = follow(edit, logits, is_chain=True).propose(max_tokens, 1e-2)
    assert draft.is_chain
    path: list[int] = []
    for value in draft.values:
        children = [node for node in range(len(tree)) if tree.parents[node] == (path or [-1])[-1]]
        assert value == pytest.approx(max(tree.values[node] for node in children))
        path.append(children[0])
    assert draft.token_ids == array(INT32, [tree.token_ids[node] for node in path])
    assert draft.positions == array(INT32, [tree.positions[node] for node in path])
    assert len(path) == max_tokens or not path or path[-1] not in tree.parents


def near_bound(values: dict[tuple[int, ...], float], bound: float) -> bool:
    """Whether a value is so near one that decides about nodes that rounding does."""
    bounds = bound, LEAST_OPEN * bound
    return any(abs(value / each - 1) < 1e-6 for value in values.values() for each in bounds)
