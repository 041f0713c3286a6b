import math
import random
from importlib.resources import files

import pytest

from optimist_aligner.model.layout import BLOCKS, NUM_WEIGHTS, START
from optimist_aligner.model.weights import Weights, load_weights, to_json


def some_logits(seed: int = 3) -> list[float]:
    generator = random.Random(seed)
    return [generator.uniform(-2, 2) for _ in range(NUM_WEIGHTS)]


def test_blocks_lie_side_by_side() -> None:
    end = 0
    for block in BLOCKS.values():
        assert START[block.name] == block.start == end
        assert block.num_weights > 0
        end += block.num_weights
    assert end == NUM_WEIGHTS


@pytest.mark.parametrize("is_rewrite", [False, True])
def test_packaged_weights_are_whole_and_finite(is_rewrite: bool) -> None:
    weights = load_weights(is_rewrite=is_rewrite)
    assert len(weights.logits) == NUM_WEIGHTS
    assert all(math.isfinite(logit) for logit in weights.logits)
    assert any(weights.logits)


@pytest.mark.parametrize(
    ("is_rewrite", "name"), [(False, "weights.json"), (True, "rewrite_weights.json")]
)
def test_packaged_file_is_what_is_written_for_it(is_rewrite: bool, name: str) -> None:
    packaged = files("optimist_aligner.model").joinpath(name).read_text()
    assert to_json(load_weights(is_rewrite=is_rewrite).logits) == packaged


@pytest.mark.parametrize("size", [0, NUM_WEIGHTS - 1, NUM_WEIGHTS + 1])
def test_another_number_of_weights_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} weights, not {NUM_WEIGHTS}"):
        Weights([0.0] * size)


def test_huge_weights_make_finite_factors() -> None:
    weights = Weights([1e4] * NUM_WEIGHTS)
    assert all(map(math.isfinite, weights.cursor.lengths))
    assert all(map(math.isfinite, weights.next_rule))


def test_factors_of_rules_are_their_own() -> None:
    logits = some_logits()
    weights = Weights(logits)
    for factors, name in (
        (weights.next_rule, "next_rule"),
        (weights.next_rule_passed, "next_rule_passed"),
    ):
        own = logits[START[name] :][: BLOCKS[name].num_weights]
        assert factors == pytest.approx([math.exp(logit) for logit in own])
