import json
import math
import random
from importlib.resources import files
from itertools import product

import pytest

from optimist_aligner.model.layout import (
    BLOCKS,
    LENGTH,
    MOST_LENGTH,
    MOST_STEPS,
    NUM_CLASSES,
    NUM_FOLLOWED,
    NUM_KINDS,
    NUM_LENGTHS,
    NUM_RUNS,
    NUM_SIGHTINGS,
    NUM_STEPS,
    NUM_WEIGHTS,
    PREDICTED,
    SOURCE,
    START,
    STEP,
)
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


def test_weights_come_back_from_json_in_their_places() -> None:
    logits = some_logits()
    blocks = json.loads(to_json(logits))
    assert list(blocks) == list(BLOCKS)
    back = [logit for name in BLOCKS for logit in blocks[name]]
    assert back == pytest.approx(logits, abs=0.0005)


@pytest.mark.parametrize("size", [0, NUM_WEIGHTS - 1, NUM_WEIGHTS + 1])
def test_another_number_of_weights_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} weights, not {NUM_WEIGHTS}"):
        Weights([0.0] * size)


def test_product_of_factors_is_the_exponential_of_the_sum_of_logits() -> None:
    logits = some_logits()
    weights = Weights(logits)
    generator = random.Random(5)

    def cell(block: str, index: int) -> float:
        assert 0 <= index < BLOCKS[block].num_weights
        return logits[START[block] + index]

    for _ in range(300):
        kind = generator.randrange(NUM_KINDS)
        source = SOURCE[kind]
        logit = generator.uniform(-8, 8)
        rate, runs = generator.randrange(NUM_RUNS), generator.randrange(NUM_RUNS)
        length, step = generator.randint(0, MOST_LENGTH), generator.randint(0, MOST_STEPS)
        pair = generator.randrange(NUM_CLASSES**2)
        sightings = generator.randrange(NUM_SIGHTINGS)
        slope, of_rate, of_runs = weights.next_terms[rate][runs][kind]
        factors = weights.continuations[kind]
        assert factors.kind == kind
        factor = (
            math.exp(slope * logit + of_rate + of_runs)
            * factors.lengths[length]
            * factors.steps[step]
            * factors.classes[pair]
            * weights.next_rule[sightings]
            * weights.next_rule_passed[sightings]
        )
        total = (
            cell("next_logit", kind) * logit
            + cell("next_rate", source * NUM_RUNS + rate)
            + cell("next_runs", source * NUM_RUNS + runs)
            + cell("next_length", source * NUM_LENGTHS + LENGTH[length])
            + cell("next_step", kind * NUM_STEPS + STEP[step])
            + cell("next_class", source * NUM_CLASSES**2 + pair)
            + cell("next_rule", sightings)
            + cell("next_rule_passed", sightings)
        )
        assert math.log(factor) == pytest.approx(total, abs=1e-9)


def test_logits_of_a_kind_are_the_sum_of_its_three_buckets() -> None:
    logits = some_logits()
    weights = Weights(logits)
    for rate, runs, followed, kind in product(
        range(NUM_RUNS), range(NUM_RUNS), range(NUM_FOLLOWED), range(NUM_KINDS)
    ):
        features = (
            START["rate"] + kind * NUM_RUNS + rate,
            START["runs"] + kind * NUM_RUNS + runs,
            START["followed"] + kind * NUM_FOLLOWED + followed,
        )
        expected = sum(logits[feature] for feature in features)
        assert weights.kind_logits[rate][runs][followed][kind] == pytest.approx(expected)


def test_cursor_has_a_factor_more_than_other_places_of_predictions() -> None:
    logits = some_logits()
    weights = Weights(logits)
    plain, cursor = weights.continuations[PREDICTED], weights.cursor
    assert (cursor.steps, cursor.classes) == (plain.steps, plain.classes)
    for length in range(MOST_LENGTH + 1):
        more = logits[START["next_cursor"] + LENGTH[length]]
        assert math.log(cursor.lengths[length] / plain.lengths[length]) == pytest.approx(more)


def test_huge_weights_make_finite_factors() -> None:
    weights = Weights([1e4] * NUM_WEIGHTS)
    assert all(map(math.isfinite, weights.cursor.lengths))
    assert all(map(math.isfinite, weights.next_rule))
