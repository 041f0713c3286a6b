"""The texts that an answer may repeat: its predictions and its prompt."""

from array import array
from collections.abc import Sequence

from optimist_proposer.core.lines import INT32

SEPARATOR = -1
"""Stands behind every text; equals no token, so that nothing is copied across the end of one."""
NOT_PREDICTED = -1
"""Prediction position of what is in no prediction."""


class Sources:
    """Predictions and the end of the prompt as one sequence; does not change.

    Attributes:
        token_ids: The predictions, then the prompt, each with SEPARATOR behind it [num_places].
        prediction_positions: Position in the predictions, counted through all of them without
            separators, of each place; NOT_PREDICTED for separators and the prompt [num_places].
        num_predicted: Places that belong to predictions, their separators included.
    """

    __slots__ = ("num_predicted", "prediction_positions", "token_ids")

    def __init__(
        self, predictions: Sequence["array[int]"], prompt: "array[int] | None" = None
    ) -> None:
        """Takes tokens of each prediction and of the prompt, all at least 0."""
        self.token_ids = array(INT32)
        self.prediction_positions = array(INT32)
        num_tokens = 0
        for prediction in predictions:
            self.token_ids.extend(prediction)
            self.token_ids.append(SEPARATOR)
            self.prediction_positions.extend(range(num_tokens, num_tokens + len(prediction)))
            self.prediction_positions.append(NOT_PREDICTED)
            num_tokens += len(prediction)
        self.num_predicted = len(self.token_ids)
        if prompt:
            self.token_ids.extend(prompt)
            self.token_ids.append(SEPARATOR)
            self.prediction_positions.extend([NOT_PREDICTED] * (len(prompt) + 1))
