"""What a request's output is expected to go on with."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Expected tokens of one request, from an output position on."""

    epoch: int
    """Counts re-alignments; a larger one replaces a smaller one."""
    base: int
    """Output position of the first token; 0 is the first generated one."""
    prediction_offset: int
    """Position in the prediction of the first token."""
    token_ids: list[int]
    """The expected tokens; empty when nothing is expected."""

    def agrees(self, position: int, token_ids: Sequence[int]) -> bool:
        """Tells whether output tokens from `position` on equal the window's, as far as it goes.

        Args:
            position: Output position of the first token, at least `base`.
            token_ids: Output tokens, a list.
        """
        start = position - self.base
        expected = self.token_ids[start : start + len(token_ids)]
        return expected == token_ids[: len(expected)]


def is_valid(window: Window, num_predicted_tokens: int, vocab_size: int) -> bool:
    """Tells whether a window can belong to a prediction of `num_predicted_tokens` tokens."""
    if window.base < 0 or window.epoch < 0:
        return False
    if not window.token_ids:
        return True
    return (
        window.prediction_offset >= 0
        and window.prediction_offset + len(window.token_ids) <= num_predicted_tokens
        and min(window.token_ids) >= 0
        and max(window.token_ids) < vocab_size
    )
