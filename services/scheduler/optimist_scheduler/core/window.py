"""What a request's output is expected to go on with."""

from dataclasses import dataclass

import numpy as np

from optimist_scheduler.core.arrays import Int32Array


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


def is_valid(window: Window, num_predicted_tokens: int, vocab_size: int) -> bool:
    """Tells whether a window can belong to a prediction of `num_predicted_tokens` tokens."""
    if window.base < 0 or window.epoch < 0:
        return False
    if len(window.token_ids) == 0:
        return True
    return bool(
        window.prediction_offset >= 0
        and window.prediction_offset + len(window.token_ids) <= num_predicted_tokens
        and window.token_ids.min() >= 0
        and window.token_ids.max() < vocab_size
    )
