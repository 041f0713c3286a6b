import math
import random
from importlib.resources import files

import pytest

from optimist_aligner.model.layout import BLOCKS, NUM_WEIGHTS, START
from optimist_aligner.model.weights import Weights, load_weights, to_json


def test_blocks_lie_side_by_side() -> None:
    end = 0
    for block in BLOCKS.values():
        assert START[block.name] == block.start == end
        assert block.num_weights > 0
        end += block.num_weights
    assert end == NUM_WEIGHTS


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


@pytest.mark.parametrize("size", [0, NUM_WEIGHTS - 1, NUM_WEIGHTS + 1])
def test_another_number_of_weights_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} weights, not {NUM_WEIGHTS}"):
        Weights([0.0] * size)


def test_huge_weights_make_finite_factors() -> None:
    weights = Weights([1e4] * NUM_WEIGHTS)
    assert all(map(math.isfinite, weights.cursor.lengths))
    assert all(map(math.isfinite, weights.next_rule))


def test_factors_of_rules_are_their_own() -> None:
    generator = random.Random(3)
    logits = [generator.uniform(-2, 2) for _ in range(NUM_WEIGHTS)]
    weights = Weights(logits)
    for name in ("next_rule", "next_rule_passed"):
        own = logits[START[name] :][: BLOCKS[name].num_weights]
        assert getattr(weights, name) == pytest.approx([math.exp(logit) for logit in own])
