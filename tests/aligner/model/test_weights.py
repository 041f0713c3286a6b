"""The packaged weights are whole and finite."""

import math
from importlib.resources import files

import pytest

from optimist_aligner.model.layout import NUM_WEIGHTS
from optimist_aligner.model.weights import Weights, load_weights, to_json


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


def test_huge_weights_make_finite_factors() -> None:
    weights = Weights([1e4] * NUM_WEIGHTS)
    assert all(map(math.isfinite, weights.cursor.lengths))
    assert all(map(math.isfinite, weights.next_rule))
