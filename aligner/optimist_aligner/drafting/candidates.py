"""What may come next: candidates, each with its features."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

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
from optimist_aligner.text.searched_text import SearchedText
from optimist_aligner.text.token_class import TokenClasses

NO_STOP: Final = -1


@dataclass(slots=True)
class Candidate:
    """A token that may come next, and where the text goes on after it."""

    token_id: int
    kind: int
    """See `layout.py`."""
    length: int
    """Tokens before it that agree."""
    offset: int
    """Where it stands in the text; NOWHERE if nowhere in particular."""
    features: list[int]
    """Its own, besides those of its kind."""
    stop: int = NO_STOP
    """Offset at which the text goes on elsewhere; NO_STOP if it does not."""
    resume: int = NO_STOP
    """Where it goes on then."""


class View:
    """All that is looked at for candidates of the next token.

    Attributes:
        text: Sources and output.
        start: Where the output begins.
        num_output: Tokens of the output.
        num_context: Tokens of the text that the output goes on, and of the output.
        num_aligned: Offsets that the cursor walks through.
        is_rewrite: Whether the output is expected to be a changed text.
        last_class: Class of the last token of the context.
        rejected: The token that was expected where the offset was lost; -1 if it is not lost.
    """

    def __init__(
        self,
        text: list[int],
        start: int,
        searched: SearchedText,
        classes: TokenClasses,
        contexts: ContextIndex,
        output: ContextIndex,
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
        self.last_class = classes.find(text[-1]) if self.num_context else 0
        self.rejected = -1
        if alignment.num_lost and alignment.lost_at < self.num_aligned:
            self.rejected = text[alignment.lost_at]

    def find_following(self, offsets: Iterable[int]) -> list[int]:
        """Returns the tokens at some offsets, but for the end of the text."""
        return [self.text[offset] for offset in offsets if offset < len(self.text)]

    def class_feature(self, kind: int, token_id: int) -> int:
        """Returns the feature of a token's class after that of the last one."""
        row = (kind * NUM_CLASSES + self.last_class) * NUM_CLASSES
        return START["class"] + row + self.classes.find(token_id)

    def compare_classes(self, offset: int, num_lost: int) -> int:
        """Returns 2 if what stands at a lost offset is of the class of what was said, 1 if not."""
        expected = self.text[offset] if 0 <= offset < len(self.text) else -1
        if not num_lost or expected < 0:
            return 0
        said = self.text[-min(num_lost, self.num_output)]
        return 2 if self.classes.find(expected) == self.classes.find(said) else 1


def lost_bucket(num_lost: int) -> int:
    """Returns the bucket of a number of tokens since a loss."""
    return LOST[min(num_lost, MOST_LOST)]


def kind_features(view: View) -> list[tuple[int, ...]]:
    """Returns the features that all candidates of a kind have, for each kind [NUM_KINDS]."""
    rate, runs = START["rate"] + view.alignment.rate, START["runs"] + view.alignment.runs
    followed = START["followed"] + FOLLOWED[min(view.alignment.run, MOST_LENGTH)]
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
        START["none"],
        START["none_length"] + LENGTH[min(alignment.run, MOST_LENGTH)],
        START["none_class"] + view.last_class,
        START["none_lost"] + lost_bucket(alignment.num_lost),
        START["none_longest"] + LENGTH[longest],
    )
