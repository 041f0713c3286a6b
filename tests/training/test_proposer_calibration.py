from array import array

from optimist_aligner.model.common import Continuations
from optimist_aligner.model.layout import BLOCKS, NUM_STEPS, NUM_WEIGHTS
from optimist_aligner.model.weights import load_weights
from optimist_aligner.text.sources import INT32
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_bench.harness.pair import Pair
from optimist_training.proposer import calibration as proposer_calibration
from optimist_training.proposer.calibration import calibrate, correct, measure

NOTHING = Continuations([], [], [], [])
VOCABULARY = Vocabulary([f"t{number}" for number in range(100)])


def pair(before: list[int], after: list[int]) -> Pair:
    return Pair(array(INT32, before), array(INT32), array(INT32, after), {})


def test_correction_doubts_what_is_further_more_and_nothing_else() -> None:
    logits = correct([0.0] * NUM_WEIGHTS, 0.2, 0.3)
    steps = BLOCKS["next_step"].start
    taken = [-logits[steps + bucket] for bucket in range(1, NUM_STEPS)]
    assert taken == sorted(taken)
    assert 0 < taken[0] < taken[-1] <= proposer_calibration.MOST_DOUBT
    assert logits[BLOCKS["none"].start] == -0.3
    changed = {
        name
        for name, block in BLOCKS.items()
        if any(logits[block.start : block.start + block.num_weights])
    }
    assert changed == {"next_step", "next_length", "none"}
    assert correct([1.5] * NUM_WEIGHTS, 0.0, 0.0) == [1.5] * NUM_WEIGHTS


def test_measure_is_higher_for_weights_that_know_than_for_none() -> None:
    texts = list(range(60)) * 3
    pairs = [pair(texts, [*texts[:70], 99, *texts[70:]])]
    fitted, none = load_weights(is_rewrite=True).logits, [0.0] * NUM_WEIGHTS
    assert measure(VOCABULARY, NOTHING, pairs, fitted) > measure(VOCABULARY, NOTHING, pairs, none)


def test_calibration_takes_the_correction_that_brings_most() -> None:
    wanted = correct([0.0] * NUM_WEIGHTS, 0.25, 0.6)

    def run(_: object, choices: list[list[float]]) -> list[float]:
        return [float(choice == wanted) for choice in choices]

    assert calibrate(VOCABULARY, NOTHING, [], [0.0] * NUM_WEIGHTS, run) == wanted
