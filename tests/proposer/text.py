"""Texts as tokens: one per character, and one that has a newline in its middle."""

import json
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from optimist_aligner.algorithm import Algorithm, Follower
from optimist_aligner.drafting.draft import FLOAT32, Draft
from optimist_aligner.text.sources import INT32, NO_POSITION, Sources
from optimist_common.drafts import TokenTree

NEWLINE_INDENT = 1000
"""The token whose text is a newline and two spaces; written § in these tests."""

NEWLINES = frozenset({ord("\n"), NEWLINE_INDENT})

# Few letters, so that lines and parts of lines occur again and again.
texts = st.text(alphabet="ab\n§", max_size=40)


def tokens(text: str) -> "array[int]":
    return array(INT32, [NEWLINE_INDENT if letter == "§" else ord(letter) for letter in text])


def as_text(token_ids: "array[int]") -> str:
    return "".join("§" if token == NEWLINE_INDENT else chr(token) for token in token_ids)


def tree_of(draft: Draft) -> TokenTree:
    return TokenTree.from_columns(
        np.array(draft.token_ids, np.int32), np.array(draft.parents, np.int32)
    )


def draft_of(
    token_ids: Sequence[int],
    parents: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    values: Sequence[float] | None = None,
) -> Draft:
    """Returns a draft: a chain read from nowhere with even chances, unless others are given."""
    size = len(token_ids)
    return Draft(
        array(INT32, token_ids),
        array(INT32, parents or range(-1, size - 1)),
        array(INT32, positions or [NO_POSITION] * size),
        array(FLOAT32, values or [0.5] * size),
    )


def followed(algorithm: Algorithm, predicted: str | list[str], output: str) -> Follower:
    """Returns a follower that observed all of `output` at once."""
    predictions = [predicted] if isinstance(predicted, str) else predicted
    follower = algorithm.prepare(Sources([tokens(text) for text in predictions])).follow()
    follower.observe(tokens(output))
    return follower


def expected_text(
    algorithm: Algorithm, predicted: str | list[str], output: str, max_tokens: int = 1000
) -> str:
    """Returns the text of the likeliest path after `output`."""
    tree = tree_of(followed(algorithm, predicted, output).propose(max_tokens, 0.0))
    return as_text(array(INT32, tree.token_ids[tree.find_likeliest_path()].tolist()))


def write_tokenizer(directory: Path, vocabulary: Sequence[str]) -> str:
    """Writes a byte-level tokenizer, for which Ċ is a newline and Ġ a space; returns the path."""
    tokenizer = Tokenizer(
        models.BPE(vocab={text: n for n, text in enumerate(vocabulary)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    (directory / "tokenizer_config.json").write_text(settings)
    return str(directory)
