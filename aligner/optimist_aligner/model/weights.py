"""The weights of the model, as they were fitted to public edits and conversations."""

import json
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from librt.vecs import vec

from optimist_aligner.model.layout import (
    BLOCKS,
    LENGTH,
    MOST_LOGIT,
    NUM_CLASSES,
    NUM_FOLLOWED,
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


class Continuation:
    """Factors of what comes after a candidate, apart from its own (`Terms`).

    Attributes:
        kind: Of the candidate.
        lengths: By tokens that agree [MOST_LENGTH + 1].
        steps: By nodes before [MOST_STEPS + 1].
        classes: By classes of the last token and the next [NUM_CLASSES * NUM_CLASSES].
    """

    __slots__ = ("classes", "kind", "lengths", "steps")

    def __init__(
        self, kind: int, lengths: vec[float], steps: vec[float], classes: vec[float]
    ) -> None:
        self.kind, self.lengths, self.steps, self.classes = kind, lengths, steps, classes


class Terms:
    """What a candidate's own factor of all that comes after it is made of."""

    __slots__ = ("of_rate", "of_runs", "slope")

    def __init__(self, slope: float, of_rate: float, of_runs: float) -> None:
        self.slope, self.of_rate, self.of_runs = slope, of_rate, of_runs

    def factor(self, logit: float) -> float:
        """Returns the factor of a candidate with this logit."""
        if logit > MOST_LOGIT:
            logit = MOST_LOGIT
        return math.exp(self.slope * logit + self.of_rate + self.of_runs)


class Weights:
    """The weights as one column, and those of continuations as factors ready to be multiplied.

    Attributes:
        logits: All of them, as `layout.BLOCKS` says [NUM_WEIGHTS].
        kind_logits: What all candidates of a kind have, by rate, runs, followed and kind
            [NUM_RUNS, NUM_RUNS, NUM_FOLLOWED, NUM_KINDS].
        continuations: Factors by kind [NUM_KINDS].
        cursor: Factors of the cursor, which is of the kind PREDICTED.
        next_terms: Of candidates by rate, runs and kind [NUM_RUNS, NUM_RUNS, NUM_KINDS].
        next_rule, next_rule_passed: Factors of a rule's replacement and of what it replaces, by
            `Rule.sightings`.
    """

    def __init__(self, logits: Sequence[float]) -> None:
        """Takes the column; raises ValueError if it has another length."""
        if len(logits) != NUM_WEIGHTS:
            raise ValueError(f"{len(logits)} weights, not {NUM_WEIGHTS}")
        self.logits = vec[float](logits)
        num_pairs = NUM_CLASSES * NUM_CLASSES
        classes = [
            vec[float](
                [self._factor("next_class", source * num_pairs + pair) for pair in range(num_pairs)]
            )
            for source in range(2)
        ]
        steps = self._factors("next_step")
        self.continuations = [
            Continuation(
                kind,
                vec[float](
                    [
                        self._factor("next_length", SOURCE[kind] * NUM_LENGTHS + each)
                        for each in LENGTH
                    ]
                ),
                vec[float]([steps[kind * NUM_STEPS + each] for each in STEP]),
                classes[SOURCE[kind]],
            )
            for kind in range(NUM_KINDS)
        ]
        plain = self.continuations[PREDICTED]
        of_cursor = [self._factor("next_cursor", each) for each in LENGTH]
        lengths = [one * other for one, other in zip(plain.lengths, of_cursor, strict=True)]
        self.cursor = Continuation(PREDICTED, vec[float](lengths), plain.steps, plain.classes)
        self.kind_logits = [
            [
                [self._kind_logits(rate, runs, followed) for followed in range(NUM_FOLLOWED)]
                for runs in range(NUM_RUNS)
            ]
            for rate in range(NUM_RUNS)
        ]
        self.next_terms = [
            [self._terms(rate, runs) for runs in range(NUM_RUNS)] for rate in range(NUM_RUNS)
        ]
        self.next_rule = self._factors("next_rule")
        self.next_rule_passed = self._factors("next_rule_passed")

    def weigh(self, features: tuple[int, ...]) -> float:
        """Returns the sum of the weights of some features."""
        logits, total = self.logits, 0.0
        for feature in features:
            total += logits[feature]
        return total

    def _kind_logits(self, rate: int, runs: int, followed: int) -> vec[float]:
        logits = self.logits
        sums = [
            logits[START["rate"] + kind * NUM_RUNS + rate]
            + logits[START["runs"] + kind * NUM_RUNS + runs]
            + logits[START["followed"] + kind * NUM_FOLLOWED + followed]
            for kind in range(NUM_KINDS)
        ]
        return vec[float](sums)

    def _terms(self, rate: int, runs: int) -> list[Terms]:
        slope = START["next_logit"]
        of_rate = START["next_rate"] + rate
        of_runs = START["next_runs"] + runs
        return [
            Terms(
                self.logits[slope + kind],
                self.logits[of_rate + source * NUM_RUNS],
                self.logits[of_runs + source * NUM_RUNS],
            )
            for kind, source in enumerate(SOURCE)
        ]

    def _factor(self, block: str, index: int) -> float:
        return math.exp(min(self.logits[START[block] + index], _MOST_EXPONENT))

    def _factors(self, block: str) -> list[float]:
        return [self._factor(block, index) for index in range(BLOCKS[block].num_weights)]


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
