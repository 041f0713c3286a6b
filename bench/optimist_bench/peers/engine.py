"""What every peer is told and what it has to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

TokenIds = list[int]


@dataclass(frozen=True)
class Setup:
    """What a peer answers with; the same for all of them and for ours."""

    model: str
    """Directory of the model."""
    draft_model: str
    """Directory of the draft model for peers that speculate with one; empty: none."""
    max_tokens: int
    """Most tokens of an answer."""
    max_model_len: int
    """Most tokens of a prompt and its answer."""
    max_concurrency: int
    """Most prompts that are answered at once."""
    num_threads: int
    """Threads of a forward pass."""


class Engine(Protocol):
    """A loaded peer."""

    def answer(self, prompts: Sequence[TokenIds], concurrency: int) -> list[TokenIds]:
        """Answers prompts greedily, so many at once as far as the engine can.

        Returns:
            The tokens of each answer; whether the end token is part of it is up to the engine.
        """
        ...


def in_batches(prompts: Sequence[TokenIds], size: int) -> list[list[TokenIds]]:
    """Returns the prompts in lists of `size`, for engines that take one batch after the other."""
    return [list(prompts[start : start + size]) for start in range(0, len(prompts), size)]
