"""What speaks for a request being the reason why workers are lost."""

from dataclasses import dataclass

LOSSES_TOGETHER = 2
"""Losses after which a request runs alone; one may be anything, as a machine that ends."""
LOSSES_AT_LAST_ALONE = 3
"""Losses that end a request if nothing else ran at the last one."""
MOST_LOSSES = 5
"""Losses that end a request in any case: a worker that it comes to may still repeat another's."""


@dataclass(slots=True)
class Suspicion:
    """Counts losses of workers that a request may have caused: it was in a plan in flight.

    What gets past the tokens that were in flight has not caused them.
    """

    num_losses: int = 0
    position: int = 0
    """Length to which the plans in flight may have brought the request, in tokens."""
    was_alone: bool = False
    """Whether no other request was in a plan in flight then."""

    def note_length(self, length: int) -> None:
        """Takes how long the request is; from the position on it is suspected no more."""
        if length >= self.position:
            self.num_losses, self.position, self.was_alone = 0, 0, False

    def note_loss(self, length: int, assumed_length: int, *, is_alone: bool) -> None:
        """Takes a loss, how long the request is, and what all in flight may have made of that."""
        self.note_length(length)
        self.num_losses += 1
        # A prompt has to be computed to its end.
        self.position = max(self.position, assumed_length, length + 1)
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
