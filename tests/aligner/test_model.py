"""What the model brings: finite weights, and counts of pieces that become common tokens."""

import math
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.model.common import (
    Common,
    Continuations,
    load_continuations,
    read_continuations,
    write_continuations,
)
from optimist_aligner.model.layout import NUM_WEIGHTS
from optimist_aligner.model.weights import load_weights, to_json
from optimist_aligner.text.token_class import TokenClasses

# A piece is a token, but for "check", which is two.
TOKENS = ["Let", " me", " ch", "eck", " read", ".", "\n", " the", "`"]
PIECES = ["Let", " me", " check", " read", "."]
COUNTED = Continuations(
    PIECES, [40, 50, 30, 12, 9], [[0, 40, 1, 40], [1, 50, 2, 25, 3, 10]], [[0, 1, 40, 2, 30, 3, 6]]
)


def encode(text: str) -> list[int]:
    token_ids = []
    while text:
        token_ids.append(next(n for n, each in enumerate(TOKENS) if text.startswith(each)))
        text = text[len(TOKENS[token_ids[-1]]) :]
    return token_ids


def test_counts_are_read_as_they_were_written() -> None:
    data = write_continuations(COUNTED)
    assert read_continuations(data) == COUNTED
    assert write_continuations(COUNTED) == data


def test_packaged_counts_name_their_pieces_and_add_up() -> None:
    counted = load_continuations()
    assert len(counted.pieces) == len(counted.counts) == len(set(counted.pieces))
    for order, rows in ((1, counted.after_one), (2, counted.after_two)):
        for row in rows:
            total, following, counts = row[order], row[order + 1 :: 2], row[order + 2 :: 2]
            assert max(*row[:order], *following) < len(counted.pieces)
            assert min(counts) > 0
            assert sum(counts) <= total


@given(text=st.lists(st.integers(0, 12), max_size=4))
def test_tokens_that_the_vocabulary_lacks_are_no_error(text: list[int]) -> None:
    rows = Common(COUNTED, encode, TokenClasses(TOKENS)).find(text, 9)
    assert all(0 <= token_id < len(TOKENS) for token_id, _ in rows)


@pytest.mark.parametrize(
    ("is_rewrite", "name"), [(False, "weights.json"), (True, "rewrite_weights.json")]
)
def test_packaged_weights_are_finite_and_their_file_is_as_it_is_written(
    is_rewrite: bool, name: str
) -> None:
    logits = load_weights(is_rewrite=is_rewrite).logits
    assert len(logits) == NUM_WEIGHTS
    assert all(map(math.isfinite, logits))
    assert any(logits)
    assert to_json(logits) == files("optimist_aligner.model").joinpath(name).read_text()
