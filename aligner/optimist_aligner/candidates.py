"""What may come next: candidates, each with its features."""

from typing import NamedTuple

from optimist_aligner.alignment import Alignment
from optimist_aligner.common import Common
from optimist_aligner.context_index import ContextIndex
from optimist_aligner.layout import (
    FOLLOWED,
    LENGTH,
    LOST,
    MOST_LENGTH,
    MOST_LOST,
    NUM_CLASSES,
    NUM_FOLLOWED,
    NUM_KINDS,
    NUM_RUNS,
    START,
)
from optimist_aligner.output_index import OutputIndex
from optimist_aligner.searched_text import SearchedText
from optimist_aligner.template import Template

NO_STOP = -1


class Candidate(NamedTuple):
    """A token that may come next, and where the text goes on behind it."""

    token_id: int
    kind: int
    length: int
    """Tokens before it that agree."""
    place: int
    """Where it stands in the text; NOWHERE if nowhere in particular."""
    stop: int
    """Place at which the text goes on elsewhere; NO_STOP if it does not."""
    resume: int
    """Where it goes on then."""
    features: tuple[int, ...]
    """Its own, besides those of its kind."""


class Sight:
    """All that is looked at for candidates of the next token.

    Attributes:
        text: Sources and output.
        start: Where the output begins.
        num_output: Tokens of the output.
        num_context: Tokens of the text that the output goes on, and of the output.
        num_aligned: Places that the cursor walks through.
        is_rewrite: Whether the output is expected to be a changed text.
        longest: Tokens before it that agree anywhere, as far as candidates were looked for.
        last_class: Class of its last token.
        rate, runs: Buckets of how the output was as predicted, see Alignment.
        followed: Bucket of how many tokens in a row were as predicted.
        rejected: The token that was expected where the place was lost; -1 if it is not lost.
    """

    __slots__ = (
        "alignment",
        "classes",
        "common",
        "contexts",
        "followed",
        "is_rewrite",
        "last_class",
        "longest",
        "num_aligned",
        "num_context",
        "num_output",
        "output",
        "rate",
        "rejected",
        "runs",
        "start",
        "template",
        "text",
    )

    def __init__(
        self,
        text: list[int],
        start: int,
        searched: SearchedText,
        classes: bytearray,
        contexts: ContextIndex,
        output: OutputIndex,
        alignment: Alignment,
        template: Template,
        common: Common | None,
    ) -> None:
        self.text, self.start, self.num_aligned = text, start, searched.num_aligned
        self.classes, self.contexts, self.output = classes, contexts, output
        self.alignment, self.template, self.common = alignment, template, common
        self.is_rewrite = searched.is_rewrite
        self.num_output = len(text) - start
        self.num_context = len(text) - searched.context_start
        self.last_class = classes[text[-1]] if self.num_context else 0
        self.rate, self.runs = alignment.rate, alignment.runs
        self.followed = FOLLOWED[min(alignment.run, MOST_LENGTH)]
        self.longest, self.rejected = 0, -1
        if alignment.num_lost and alignment.lost_at < self.num_aligned:
            self.rejected = text[alignment.lost_at]

    def compare_classes(self, place: int, num_lost: int) -> int:
        """Returns 2 if what stands at a lost place is of the class of what was said, 1 if not."""
        expected = self.text[place] if 0 <= place < len(self.text) else -1
        if not num_lost or expected < 0:
            return 0
        said = self.text[-min(num_lost, self.num_output)]
        return 2 if self.classes[expected] == self.classes[said] else 1


def lost_bucket(num_lost: int) -> int:
    """Returns the bucket of a number of tokens since a loss."""
    return LOST[min(num_lost, MOST_LOST)]


def class_row(kind: int, last_class: int) -> int:
    """Returns where the weights of the next token's class begin."""
    return START["class"] + (kind * NUM_CLASSES + last_class) * NUM_CLASSES


def kind_features(sight: Sight) -> list[tuple[int, ...]]:
    """Returns the features that all candidates of a kind have, for each kind [NUM_KINDS].

    `Weights.kind_logits` has their sums.
    """
    rate, runs = START["rate"] + sight.rate, START["runs"] + sight.runs
    followed = START["followed"] + sight.followed
    return [
        (rate + kind * NUM_RUNS, runs + kind * NUM_RUNS, followed + kind * NUM_FOLLOWED)
        for kind in range(NUM_KINDS)
    ]


def none_features(sight: Sight) -> tuple[int, ...]:
    """Returns the features of none of the candidates being right."""
    alignment = sight.alignment
    return (
        START["none"],
        START["none_length"] + LENGTH[min(alignment.run, MOST_LENGTH)],
        START["none_class"] + sight.last_class,
        START["none_lost"] + lost_bucket(alignment.num_lost),
        START["none_longest"] + LENGTH[sight.longest],
    )
