"""Passes that are noted for the fit are those that the proposer would make."""

import random
from array import array
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from optimist_aligner.drafting.draft import NO_PARENT
from optimist_aligner.follower import Aligner, AutoFollower
from optimist_aligner.model.layout import BLOCKS, NUM_WEIGHTS
from optimist_aligner.model.weights import Weights, load_weights
from optimist_aligner.text.sources import Sources
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_training.proposer.fit import ExampleBuilder, Examples
from optimist_training.proposer.passes import collect_pass
from tests.proposer.text import tree_of

TOKEN_TEXTS = [" a", "b", "\n", "(", "1", " ", "c", " d"]
OLD, NEW = 6, 7
PACKAGED = load_weights(is_rewrite=True).logits
VOCABULARY = Vocabulary(TOKEN_TEXTS)


def some_logits(seed: int) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(0, 0.5) for _ in range(NUM_WEIGHTS)]


def renaming(seed: int) -> tuple[list[int], list[int]]:
    """Returns a text, and the same with a token renamed."""
    generator = random.Random(seed)
    before = [generator.choice([0, 1, 2, 3, 4, 5, OLD]) for _ in range(60)]
    return before, [NEW if token_id == OLD else token_id for token_id in before]


def followed(logits: Sequence[float], before: list[int], output: list[int]) -> AutoFollower:
    algorithm = Aligner(VOCABULARY, Weights(logits))
    follower = algorithm.prepare(Sources([array("i", before)])).follow()
    follower.observe(array("i", output))
    return follower


def chances(
    examples: Examples, logits: Sequence[float], group: int, *, is_step: bool
) -> tuple[float, float]:
    """Returns the share of the rows that are right, and of all rows."""
    weights = np.array([*logits, 0.0])
    start, end = examples.bounds[group : group + 2]
    odds = weights[examples.features[start:end]].sum(1)
    if is_step:
        of_kind = weights[BLOCKS["next_logit"].start + examples.kinds[start:end]]
        odds = odds + of_kind * examples.logits[start:end]
    odds = np.exp(odds - weights[examples.none_features[group]].sum())
    total = 1 + odds.sum()
    return float(odds[examples.is_right[start:end]].sum() / total), float(odds.sum() / total)


@pytest.mark.parametrize("logits", [some_logits(1), PACKAGED])
@pytest.mark.parametrize("seed", range(2))
def test_examples_say_what_the_tree_says(logits: list[float], seed: int) -> None:
    """The value of a node is the product of the shares of what was right up to it."""
    before, after = renaming(seed)
    num_nodes = 0
    for position in range(0, 50, 3):
        follower = followed(logits, before, after[:position])
        truth = after[position:]
        roots, steps = ExampleBuilder(), ExampleBuilder()
        collect_pass(follower, truth, logits, 0.0, roots, steps)
        packed = roots.build(), steps.build()
        draft = follower.propose(500, 0.0)
        expected = 1.0
        values = [draft.values[node] for node in tree_of(draft).walk(truth)]
        for depth, value in enumerate(values):
            examples, group = (packed[0], 0) if depth == 0 else (packed[1], depth - 1)
            expected *= chances(examples, logits, group, is_step=depth > 0)[0]
            assert value == pytest.approx(expected, rel=1e-4)
        num_nodes += len(values)
        nodes = zip(draft.values, draft.parents, strict=True)
        first = sum(value for value, parent in nodes if parent == NO_PARENT)
        assert first <= chances(packed[0], logits, 0, is_step=False)[1] * (1 + 1e-5)
    assert num_nodes > 20


@pytest.mark.parametrize(
    ("before", "truth", "least", "rights"),
    [
        # No row is right where none of the candidates is.
        ([0, 1, 2], [7, 0], 0.5, [[False], []]),
        ([0, 1, 2, 3, 4, 5], [1, 2, 3, 7, 5], 0.0, [[True], [True, True, False]]),
    ],
)
def test_right_candidates_are_followed_to_where_they_err(
    before: list[int], truth: list[int], least: float, rights: list[list[bool]]
) -> None:
    roots, steps, logits = ExampleBuilder(), ExampleBuilder(), some_logits(3)
    collect_pass(followed(logits, before, [0]), truth, logits, least, roots, steps)
    found = [
        [bool(examples.is_right[start:end].any()) for start, end in pairwise(examples.bounds)]
        for examples in (roots.build(), steps.build())
    ]
    assert found == rights
