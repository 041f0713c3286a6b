"""The weights of the model, as they were fitted to public edits and conversations."""

import json
import math
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Final, NamedTuple

from optimist_aligner.model.layout import (
    BLOCKS,
    LENGTH,
    MOST_LOGIT,
    NUM_CLASSES,
    NUM_KINDS,
    NUM_LENGTHS,
    NUM_RUNS,
    NUM_STEPS,
    NUM_WEIGHTS,
    PREDICTED,
    SOURCE,
    START,
    STEP,
)

_FILES: Final = {False: "weights.json", True: "rewrite_weights.json"}
_MOST_EXPONENT: Final = 30.0


class Continuation(NamedTuple):
    """Factors of what comes after a candidate, apart from its own (`Weights.find_factor`)."""

    kind: int
    """Of the candidate."""
    lengths: list[float]
    """By tokens that agree [MOST_LENGTH + 1]."""
    steps: list[float]
    """By nodes before [MOST_STEPS + 1]."""
    classes: list[float]
    """By classes of the last token and the next [NUM_CLASSES * NUM_CLASSES]."""


class Weights:
    """The weights as one column, and those of continuations as factors ready to be multiplied.

    Attributes:
        logits: All of them, as `layout.BLOCKS` says [NUM_WEIGHTS].
        continuations: Factors by kind [NUM_KINDS].
        cursor: Factors of the cursor, which is of the kind PREDICTED.
        next_rule, next_rule_passed: Factors of a rule's replacement and of what it replaces, by
            `Rule.sightings`.
    """

    def __init__(self, logits: Sequence[float]) -> None:
        """Takes the column; raises ValueError if it has another length."""
        if len(logits) != NUM_WEIGHTS:
            raise ValueError(f"{len(logits)} weights, not {NUM_WEIGHTS}")
        self.logits = list(logits)
        self.continuations = [self._continuation(kind) for kind in range(NUM_KINDS)]
        plain, of_cursor = self.continuations[PREDICTED], self._factors("next_cursor")
        lengths = [
            factor * of_cursor[each] for factor, each in zip(plain.lengths, LENGTH, strict=True)
        ]
        self.cursor = plain._replace(lengths=lengths)
        self.next_rule = self._factors("next_rule")
        self.next_rule_passed = self._factors("next_rule_passed")

    def weigh(self, features: Iterable[int]) -> float:
        """Returns the sum of the weights of some features, in their order."""
        total = 0.0
        for feature in features:
            total += self.logits[feature]
        return total

    def find_factor(self, kind: int, rate: int, runs: int, logit: float) -> float:
        """Returns a candidate's own factor of all that comes after it.

        Args:
            kind: Of the candidate.
            rate: See Alignment.
            runs: See Alignment.
            logit: Of the candidate.
        """
        logits, source = self.logits, SOURCE[kind] * NUM_RUNS
        return math.exp(
            logits[START["next_logit"] + kind] * min(logit, MOST_LOGIT)
            + logits[START["next_rate"] + source + rate]
            + logits[START["next_runs"] + source + runs]
        )

    def _continuation(self, kind: int) -> Continuation:
        lengths, num_pairs = self._factors("next_length"), NUM_CLASSES * NUM_CLASSES
        source, steps = SOURCE[kind], self._factors("next_step")
        return Continuation(
            kind,
            [lengths[source * NUM_LENGTHS + each] for each in LENGTH],
            [steps[kind * NUM_STEPS + each] for each in STEP],
            self._factors("next_class")[source * num_pairs :][:num_pairs],
        )

    def _factors(self, block: str) -> list[float]:
        _, start, number = BLOCKS[block]
        logits = self.logits[start : start + number]
        return [math.exp(min(logit, _MOST_EXPONENT)) for logit in logits]


def load_weights(*, is_rewrite: bool) -> Weights:
    """Returns the weights that come with the package: for rewritten texts, or for the rest."""
    values = json.loads(files(__package__).joinpath(_FILES[is_rewrite]).read_text())
    return Weights([weight for name in BLOCKS for weight in values[name]])


def to_json(logits: Sequence[float]) -> str:
    """Writes weights as `load_weights` reads them."""
    blocks = {
        block.name: [round(logit, 3) for logit in logits[block.start :][: block.num_weights]]
        for block in BLOCKS.values()
    }
    lines = [f" {json.dumps(name)}: {json.dumps(values)}" for name, values in blocks.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
