"""Makes the weights of the proposer's default algorithm from edits: before and after.

Rounds of simulating requests with the weights so far, at costs from nothing up, and of fitting new
weights to what was met there.
"""

import argparse
import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from optimist_proposer.core.auto.follower import AutoAlgorithm
from optimist_proposer.core.auto.layout import NUM_WEIGHTS
from optimist_proposer.core.auto.weights import Weights, to_json
from optimist_proposer.core.draft import NO_PARENT, Draft
from optimist_proposer.core.sources import Sources
from optimist_proposer.core.vocabulary import Vocabulary
from optimist_training.proposer_examples import Examples, collect_pass
from optimist_training.proposer_fit import Column, fit

WINDOW = 64
MIN_VALUES = (0.0, 0.09, 0.2)
"""Least values of nodes, as costs of 0, 1 and 3 % of a pass make them."""


class Edit(NamedTuple):
    """An edit as tokens."""

    before: "array[int]"
    after: "array[int]"


def train_proposer(options: argparse.Namespace) -> None:
    """Fits weights to `options.pairs` and writes them to `options.out`."""
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    size = tokenizer.get_vocab_size()
    vocabulary = Vocabulary(tokenizer.decode_batch([[token_id] for token_id in range(size)]))
    edits = [edit for path in options.pairs for edit in _read(path, tokenizer)]
    weights = np.zeros(NUM_WEIGHTS + 1)
    for number in range(options.rounds):
        min_values = MIN_VALUES if number else MIN_VALUES[:1]
        roots, steps = _collect(vocabulary, edits, weights, min_values)
        root_loss = fit(weights, [roots], is_step=False, seed=options.seed + number)
        step_loss = fit(weights, [steps], is_step=True, seed=options.seed + number)
        print(f"round {number + 1}: first tokens {root_loss:.4f}, further ones {step_loss:.4f}")
        options.out.write_text(to_json(weights[:NUM_WEIGHTS].tolist()))


def _read(path: Path, tokenizer: Tokenizer) -> Iterator[Edit]:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        before, after = (tokenizer.encode(row[name]).ids for name in ("before", "after"))
        yield Edit(array("i", before), array("i", after))


def _collect(
    vocabulary: Vocabulary, edits: list[Edit], weights: Column, min_values: tuple[float, ...]
) -> tuple[Examples, Examples]:
    logits = weights.tolist()
    algorithm = AutoAlgorithm(vocabulary, Weights(logits[:NUM_WEIGHTS]))
    roots, steps = Examples(), Examples()
    for edit in edits:
        reference = algorithm.prepare(Sources([edit.before]))
        for min_value in min_values:
            follower, position = reference.follow(), 0
            while position < len(edit.after):
                collect_pass(follower, edit.after, position, logits, roots, steps, min_value)
                draft = follower.propose(WINDOW, min_value)
                emitted = edit.after[
                    position : position + _count_accepted(draft, edit, position) + 1
                ]
                follower.observe(emitted)
                position += len(emitted)
    roots.pack()
    steps.pack()
    return roots, steps


def _count_accepted(draft: Draft, edit: Edit, position: int) -> int:
    node, num_accepted = NO_PARENT, 0
    for index, parent in enumerate(draft.parents):
        place = position + num_accepted
        if parent == node and edit.after[place : place + 1] == draft.token_ids[index : index + 1]:
            node, num_accepted = index, num_accepted + 1
    return num_accepted
