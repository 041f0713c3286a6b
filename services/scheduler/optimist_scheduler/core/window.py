"""What a request's output is expected to go on with."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Expected tokens of one request, from an output position on."""

    epoch: int
    """Counts re-alignments; a larger one replaces a smaller one."""
    base: int
    """Output position of the first token; 0 is the first generated one."""
    prediction_offset: int
    """Position in the prediction of the first token."""
    token_ids: npt.NDArray[np.int32]
    """The expected tokens; empty when nothing is expected."""

    def agrees(self, token_ids: npt.NDArray[np.int32]) -> bool:
        """Tells whether output tokens from `base` on equal the window's, as far as it goes."""
        most = min(len(token_ids), len(self.token_ids))
        return np.array_equal(self.token_ids[:most], token_ids[:most])


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
