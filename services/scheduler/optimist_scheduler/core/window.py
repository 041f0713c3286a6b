"""What a request's output is expected to go on with."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimist_scheduler.core.arrays import Int32Array

MAX_ALTERNATIVES = 3
"""Of a window; a proposer may say more."""


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """A continuation that departs from a window."""

    offset: int
    """Index in the window's tokens of the token in whose place this begins."""
    prediction_offset: int
    """Position in the prediction of the first token."""
    token_ids: Int32Array
    """The tokens, the first one different from the window's."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Expected tokens of one request, from an output position on."""

    epoch: int
    """Counts re-alignments; a larger one replaces a smaller one."""
    base: int
    """Output position of the first token; 0 is the first generated one."""
    prediction_offset: int
    """Position in the prediction of the first token."""
    token_ids: Int32Array
    """The expected tokens; empty when nothing is expected."""
    alternatives: tuple[Alternative, ...] = ()
    """Other continuations, most likely first."""

    def find_end(self, token_ids: Int32Array, num_prompt_tokens: int) -> int:
        """Returns the length of a sequence at the window's end.

        0 if the sequence has not reached the window, or says something else.

        Args:
            token_ids: Prompt and output [num_tokens].
            num_prompt_tokens: How many of them are prompt.
        """
        start = num_prompt_tokens + self.base
        since = token_ids[start : start + len(self.token_ids)]
        if len(token_ids) < start or not np.array_equal(self.token_ids[: len(since)], since):
            return 0
        return start + len(self.token_ids)

    def follow(self, token_ids: Int32Array, num_prompt_tokens: int) -> "Window | None":
        """Returns the continuation that a sequence follows: this one, or else an alternative.

        An alternative that has become the window has no alternatives. None if the sequence has not
        reached the window, or says something else.

        Args:
            token_ids: Prompt and output [num_tokens].
            num_prompt_tokens: How many of them are prompt.
        """
        if not self.alternatives:
            return self if self.find_end(token_ids, num_prompt_tokens) else None
        for window in self.continuations():
            # What stands before a departure is the window's, which `find_end` does not look at.
            start = num_prompt_tokens + self.base
            since = token_ids[start : start + window.base - self.base]
            before = self.token_ids[: window.base - self.base]
            if np.array_equal(since, before) and window.find_end(token_ids, num_prompt_tokens):
                return window
        return None

    def continuations(self) -> Iterator["Window"]:
        """Iterates over this window and its alternatives as windows of their own."""
        yield self
        for other in self.alternatives:
            base = self.base + other.offset
            yield Window(self.epoch, base, other.prediction_offset, other.token_ids)


def is_valid(window: Window, num_predicted_tokens: int, vocab_size: int) -> bool:
    """Tells whether a window can belong to a prediction of `num_predicted_tokens` tokens."""
    if window.base < 0 or window.epoch < 0:
        return False
    if len(window.token_ids) == 0:
        return True
    if any(
        not 0 <= other.offset < len(window.token_ids)
        or len(other.token_ids) == 0
        or other.token_ids[0] == window.token_ids[other.offset]
        for other in window.alternatives
    ):
        return False
    return len(window.alternatives) <= MAX_ALTERNATIVES and all(
        each.prediction_offset >= 0
        and each.prediction_offset + len(each.token_ids) <= num_predicted_tokens
        and each.token_ids.min() >= 0
        and each.token_ids.max() < vocab_size
        for each in window.continuations()
    )
