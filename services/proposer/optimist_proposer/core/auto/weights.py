"""The weights of the model, as they were fitted to edits in the history of public projects."""

import json
import math
from collections.abc import Sequence
from importlib.resources import files

from optimist_proposer.core.auto.layout import (
    BLOCKS,
    LENGTH,
    MOST_LENGTH,
    MOST_STEPS,
    NUM_CLASSES,
    NUM_KINDS,
    NUM_LENGTHS,
    NUM_RUNS,
    NUM_WEIGHTS,
    STEP,
)

_FILE = "weights.json"
_MOST_EXPONENT = 30.0


class Weights:
    """The weights as one column, and those of continuations as factors ready to be multiplied.

    Attributes:
        logits: All of them, as `layout.BLOCKS` says [NUM_WEIGHTS].
        next_length: Factor by length of agreement, for either source [2][MOST_LENGTH + 1].
        next_step: Factor by number of nodes before, for each kind [NUM_KINDS][MOST_STEPS + 1].
        next_class: Factor by classes of the last token and the next, for either source
            [2][NUM_CLASSES * NUM_CLASSES].
        next_cursor: Factor of the cursor by length [MOST_LENGTH + 1].
        next_rule, next_rule_passed: Factors of a rule's replacement and of what it replaces.
    """

    def __init__(self, logits: Sequence[float]) -> None:
        """Takes the column; raises ValueError if it has another length."""
        if len(logits) != NUM_WEIGHTS:
            raise ValueError(f"{len(logits)} weights, not {NUM_WEIGHTS}")
        self.logits = list(logits)
        lengths = range(MOST_LENGTH + 1)
        self.next_length = [
            [
                self._factor("next_length", source * NUM_LENGTHS + LENGTH[length])
                for length in lengths
            ]
            for source in range(2)
        ]
        self.next_step = [
            [self._factor("next_step", kind * 12 + STEP[step]) for step in range(MOST_STEPS + 1)]
            for kind in range(NUM_KINDS)
        ]
        num_pairs = NUM_CLASSES * NUM_CLASSES
        self.next_class = [
            [self._factor("next_class", source * num_pairs + pair) for pair in range(num_pairs)]
            for source in range(2)
        ]
        self.next_cursor = [self._factor("next_cursor", LENGTH[length]) for length in lengths]
        self.next_rule = self._factors("next_rule")
        self.next_rule_passed = self._factors("next_rule_passed")

    def next_start(self, kind: int, source: int, logit: float, rate: int, runs: int) -> float:
        """Returns the factor of a candidate that is the same for all that comes behind it."""
        weights = self.logits
        return math.exp(
            weights[BLOCKS["next_logit"].start + kind] * logit
            + weights[BLOCKS["next_rate"].start + source * NUM_RUNS + rate]
            + weights[BLOCKS["next_runs"].start + source * NUM_RUNS + runs]
        )

    def _factor(self, block: str, index: int) -> float:
        return math.exp(min(self.logits[BLOCKS[block].start + index], _MOST_EXPONENT))

    def _factors(self, block: str) -> list[float]:
        return [self._factor(block, index) for index in range(BLOCKS[block].num_weights)]


def load_weights() -> Weights:
    """Returns the weights that come with the package."""
    values = json.loads(files(__package__).joinpath(_FILE).read_text())
    return Weights([weight for name in BLOCKS for weight in values[name]])


def to_json(logits: Sequence[float]) -> str:
    """Writes weights as `load_weights` reads them."""
    blocks = {
        block.name: [round(logit, 3) for logit in logits[block.start :][: block.num_weights]]
        for block in BLOCKS.values()
    }
    lines = (f" {json.dumps(name)}: {json.dumps(values)}" for name, values in blocks.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
