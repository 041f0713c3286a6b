"""The texts that an answer may repeat: its predictions and its prompt."""

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np

INT32: Final = "i"
"""Type code of every array of token ids: int32, as on the wire."""
SEPARATOR: Final = -1
"""Stands after every text; equals no token, so that nothing is copied across the end of one."""
NO_POSITION: Final = -1
"""Position of what is neither in a prediction nor in the prompt."""
LAST_OF_PROMPT: Final = -2
"""Position of the prompt's last token; the one before it has -3, and so on."""


class Sources:
    """Predictions and the end of the prompt as one sequence; does not change.

    Attributes:
        token_ids: The predictions, then the prompt, each with SEPARATOR after it [num_tokens].
        positions: Of each token: from 0 on in the predictions, counted through all of them
            without separators; up to LAST_OF_PROMPT in the prompt; else NO_POSITION [num_tokens].
        num_predicted: Tokens that belong to predictions, their separators included.
    """

    __slots__ = ("num_predicted", "positions", "token_ids")

    def __init__(
        self, predictions: Sequence["array[int]"], prompt: "array[int] | None" = None
    ) -> None:
        """Takes tokens of each prediction and of the prompt, all at least 0."""
        self.token_ids = array(INT32)
        self.positions = array(INT32)
        num_tokens = 0
        for prediction in predictions:
            self.token_ids.extend(prediction)
            self.token_ids.append(SEPARATOR)
            self.positions.extend(_count(num_tokens, num_tokens + len(prediction)))
            self.positions.append(NO_POSITION)
            num_tokens += len(prediction)
        self.num_predicted = len(self.token_ids)
        if prompt:
            self.token_ids.extend(prompt)
            self.token_ids.append(SEPARATOR)
            self.positions.extend(_count(NO_POSITION - len(prompt), 0))


def _count(start: int, end: int) -> "array[int]":
    # numpy makes no object of each number.
    return array(INT32, np.arange(start, end, dtype=np.intc).tobytes())
