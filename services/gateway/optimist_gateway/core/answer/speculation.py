"""What speculation was worth."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

MAX_COUNTED = 64
"""Passes with more accepted drafts are counted with those that have as many."""


@dataclass(frozen=True)
class Speculation:
    """The forward passes of one or several answers."""

    num_passes: int = 0
    """Those that emitted tokens."""
    num_tokens: int = 0
    """Tokens that they emitted."""
    num_accepted_tokens: int = 0
    """How many of these were drafts."""
    num_drafted_tokens: int | None = 0
    """Drafts that were verified; None if the scheduler gave no account."""
    accepted_length_histogram: Sequence[int] = field(default_factory=list)
    """How many passes had 0, 1, 2, ... accepted drafts; at most `MAX_COUNTED` + 1 counts."""

    def to_api(self) -> dict[str, Any]:
        """Returns the `speculation` object of a usage."""
        drafted = self.num_drafted_tokens
        return {
            "num_passes": self.num_passes,
            "num_drafted_tokens": drafted,
            "num_accepted_tokens": self.num_accepted_tokens,
            "acceptance_rate": self.num_accepted_tokens / drafted if drafted else None,
            "mean_accepted_length": self.num_tokens / self.num_passes if self.num_passes else None,
            "accepted_length_histogram": list(self.accepted_length_histogram),
        }


def add_speculations(several: Sequence[Speculation]) -> Speculation:
    """Returns the sum."""
    drafted = [one.num_drafted_tokens for one in several]
    known = [count for count in drafted if count is not None]
    histograms = (one.accepted_length_histogram for one in several)
    return Speculation(
        num_passes=sum(one.num_passes for one in several),
        num_tokens=sum(one.num_tokens for one in several),
        num_accepted_tokens=sum(one.num_accepted_tokens for one in several),
        num_drafted_tokens=sum(known) if len(known) == len(drafted) else None,
        accepted_length_histogram=[sum(counts) for counts in zip_longest(*histograms, fillvalue=0)],
    )
