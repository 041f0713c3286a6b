"""What may come next: candidates, each with its features."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import mypyc_attr

from optimist_aligner.following.alignment import Alignment
from optimist_aligner.following.template import Template
from optimist_aligner.model.common import Common
from optimist_aligner.model.layout import (
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
from optimist_aligner.text.context_index import ContextIndex
from optimist_aligner.text.growing_text import GrowingText
from optimist_aligner.text.output_index import OutputIndex
from optimist_aligner.text.searched_text import SearchedText

NO_STOP: Final = -1

_CLASS: Final = START["class"]
_RATE: Final = START["rate"]
_RUNS: Final = START["runs"]
_FOLLOWED: Final = START["followed"]
_NONE: Final = START["none"]
_NONE_LENGTH: Final = START["none_length"]
_NONE_CLASS: Final = START["none_class"]
_NONE_LOST: Final = START["none_lost"]
_NONE_LONGEST: Final = START["none_longest"]


@mypyc_attr(acyclic=True)
class Candidate:
    """A token that may come next, and where the text goes on after it.

    Attributes:
        token_id: The token.
        kind: See `layout.py`.
        length: Tokens before it that agree.
        offset: Where it stands in the text; NOWHERE if nowhere in particular.
        stop: Offset at which the text goes on elsewhere; NO_STOP if it does not.
        resume: Where it goes on then.
        features: Its own, besides those of its kind, if the view keeps them.
        logit: What they weigh, and what those of its kind weigh once it is compared with others.
        odds: Of its token against nothing that was found, once it is compared with others; the
            first candidate of a token has those of all of them.
    """

    __slots__ = (
        "features",
        "kind",
        "length",
        "logit",
        "odds",
        "offset",
        "resume",
        "stop",
        "token_id",
    )

    def __init__(
        self,
        token_id: int,
        kind: int,
        length: int,
        offset: int,
        stop: int = NO_STOP,
        resume: int = NO_STOP,
    ) -> None:
        self.token_id = token_id
        self.kind = kind
        self.length = length
        self.offset = offset
        self.stop = stop
        self.resume = resume
        self.features: tuple[int, ...] = ()
        self.logit = self.odds = 0.0

    def add(self, view: "View", feature: int) -> None:
        """Takes one more feature of its own."""
        self.logit += view.logits[feature]
        if view.keeps_features:
            self.features += (feature,)

    def add_three(self, view: "View", first: int, second: int, third: int) -> None:
        """Takes the first three features of its own."""
        logits = view.logits
        self.logit = logits[first] + logits[second] + logits[third]
        if view.keeps_features:
            self.features = (first, second, third)


@mypyc_attr(acyclic=True)
class View:
    """All that is looked at for candidates of the next token.

    Attributes:
        text: Sources and output.
        start: Where the output begins.
        num_output: Tokens of the output.
        num_context: Tokens of the text that the output goes on, and of the output.
        logits: Weights of features.
        keeps_features: Whether candidates tell their features.
        num_aligned: Offsets that the cursor walks through.
        is_rewrite: Whether the output is expected to be a changed text.
        last_class: Class of its last token.
        rate, runs: Buckets of how the output was as predicted, see Alignment.
        followed: Bucket of how many tokens in a row were as predicted.
        rejected: The token that was expected where the offset was lost; -1 if it is not lost.
    """

    __slots__ = (
        "alignment",
        "classes",
        "common",
        "contexts",
        "followed",
        "is_rewrite",
        "keeps_features",
        "last_class",
        "logits",
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
        text: GrowingText,
        start: int,
        searched: SearchedText,
        classes: bytes,
        contexts: ContextIndex,
        output: OutputIndex,
        alignment: Alignment,
        template: Template,
        common: Common | None,
        logits: vec[float],
        *,
        keeps_features: bool,
    ) -> None:
        self.text, self.start, self.num_aligned = text, start, searched.num_aligned
        self.classes, self.contexts, self.output = classes, contexts, output
        self.alignment, self.template, self.common = alignment, template, common
        self.logits, self.keeps_features = logits, keeps_features
        self.is_rewrite = searched.is_rewrite
        self.num_output = len(text) - start
        self.num_context = len(text) - searched.context_start
        self.last_class = classes[text.ids[-1]] if self.num_context else 0
        self.rate, self.runs = alignment.rate, alignment.runs
        self.followed = FOLLOWED[min(alignment.run, MOST_LENGTH)]
        self.rejected = -1
        if alignment.num_lost and alignment.lost_at < self.num_aligned:
            self.rejected = text.ids[alignment.lost_at]

    def compare_classes(self, offset: int, num_lost: int) -> int:
        """Returns 2 if what stands at a lost offset is of the class of what was said, 1 if not."""
        ids = self.text.ids
        expected = ids[offset] if 0 <= offset < len(ids) else -1
        if not num_lost or expected < 0:
            return 0
        said = ids[-min(num_lost, self.num_output)]
        return 2 if self.classes[expected] == self.classes[said] else 1


def lost_bucket(num_lost: int) -> int:
    """Returns the bucket of a number of tokens since a loss."""
    return LOST[min(num_lost, MOST_LOST)]


def class_row(kind: int, last_class: int) -> int:
    """Returns where the weights of the next token's class begin."""
    return _CLASS + (kind * NUM_CLASSES + last_class) * NUM_CLASSES


def kind_features(view: View) -> list[tuple[int, ...]]:
    """Returns the features that all candidates of a kind have, for each kind [NUM_KINDS].

    `Weights.kind_logits` has their sums.
    """
    rate, runs = _RATE + view.rate, _RUNS + view.runs
    followed = _FOLLOWED + view.followed
    return [
        (rate + kind * NUM_RUNS, runs + kind * NUM_RUNS, followed + kind * NUM_FOLLOWED)
        for kind in range(NUM_KINDS)
    ]


def none_features(view: View, longest: int) -> tuple[int, ...]:
    """Returns the features of none of the candidates being right.

    Args:
        view: What is looked at.
        longest: Most tokens that agree before a candidate.
    """
    alignment = view.alignment
    return (
        _NONE,
        _NONE_LENGTH + LENGTH[min(alignment.run, MOST_LENGTH)],
        _NONE_CLASS + view.last_class,
        _NONE_LOST + lost_bucket(alignment.num_lost),
        _NONE_LONGEST + LENGTH[longest],
    )
