"""What speaks for a request being the reason why workers are lost."""

from dataclasses import dataclass, field

LOSSES_TOGETHER = 2
"""Losses after which a request runs alone; one may be anything, as a machine that ends."""
LOSSES_AT_LAST_ALONE = 3
"""Losses that end a request if nothing else ran at the last one."""
MOST_LOSSES = 5
"""Losses that end a request in any case."""


@dataclass(slots=True)
class Suspicion:
    """Keeps the losses of workers that a request may have caused: it was in a plan in flight.

    One that ends workers ends them at one length. It has not caused a loss if it gets past the
    tokens that were in flight then.
    """

    positions: list[int] = field(default_factory=list)
    """Of each loss, the length to which the plans in flight may have brought it, in tokens."""
    was_alone: bool = False
    """Whether no other request was in a plan in flight at the last loss."""

    @property
    def num_losses(self) -> int:
        """Losses that it may have caused, all at the same length."""
        return len(self.positions)

    def note_length(self, length: int) -> None:
        """Takes how long the request is; of losses up to there it is suspected no more."""
        self.positions = [position for position in self.positions if position > length]

    def note_loss(self, length: int, assumed_length: int, *, is_alone: bool) -> None:
        """Takes a loss, how long the request is, and what all in flight may have made of that."""
        self.note_length(length)
        # A prompt has to be computed to its end.
        self.positions.append(max(assumed_length, length + 1))
        self.was_alone = is_alone

    @property
    def must_run_alone(self) -> bool:
        """Whether the request is to be tried alone, so that a loss says something."""
        return self.num_losses >= LOSSES_TOGETHER

    @property
    def is_proven(self) -> bool:
        """Whether the request ends."""
        least = LOSSES_AT_LAST_ALONE if self.was_alone else MOST_LOSSES
        return self.num_losses >= least
