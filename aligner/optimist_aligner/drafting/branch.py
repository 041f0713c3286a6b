"""What may come after a node of a tree, and what it was found as."""

from dataclasses import dataclass, field

from optimist_aligner.drafting.candidates import NO_STOP
from optimist_aligner.drafting.draft import NO_PARENT
from optimist_aligner.model.weights import Continuation
from optimist_aligner.text.sources import NO_POSITION


@dataclass(slots=True)
class Path:
    """A candidate that agrees with the nodes up to here."""

    factor: float
    """Of all that comes after it."""
    factors: Continuation
    """The others."""
    agreed: int
    """Tokens that agreed before the first node if they count on, else 0."""
    first: int
    """Where the first node is in the text; the node after n others is n tokens further on."""
    stop: int = NO_STOP
    resume: int = NO_STOP
    """See Candidate."""


@dataclass(slots=True)
class Branch:
    """What may come after a node."""

    token_id: int
    weight: float = 0.0
    """Its odds against nothing that was found."""
    position: int = NO_POSITION
    """See `Sources.positions`."""
    paths: list[Path] = field(default_factory=list)
    """What it was found as."""
    value: float = 0.0
    """Its chance."""
    parent: int = NO_PARENT
    step: int = 0
    """Nodes that lead there."""

    def add(self, path: Path, position: int) -> None:
        """Takes what it was found as too.

        Its position is in a prediction if one of them is, else in the prompt if one is.
        """
        self.paths.append(path)
        if self.position == NO_POSITION or self.position < 0 <= position:
            self.position = position
