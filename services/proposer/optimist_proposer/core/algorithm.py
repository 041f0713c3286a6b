"""What an algorithm decides: where the cursor stands after new tokens."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Set
from dataclasses import dataclass

from optimist_proposer.core.cursor import Cursor
from optimist_proposer.core.prediction import Prediction


@dataclass(frozen=True, slots=True)
class Progress:
    """What one observation brought about."""

    num_lines: int
    """Output lines it completed, as far as they were counted."""
    num_alignments: int
    """Times the place in the prediction was searched for."""
    num_losses: int
    """Times the place was lost."""


class Algorithm(ABC):
    """Moves cursors. Holds no state of any request, so that it serves all of them."""

    def __init__(self, newline_token_ids: Set[int]) -> None:
        self._newline_token_ids = newline_token_ids

    def prepare(self, token_ids: "array[int]") -> Prediction:
        """Returns the prediction in the form that `observe` takes."""
        return Prediction(token_ids, self._newline_token_ids)

    @abstractmethod
    def observe(self, prediction: Prediction, cursor: Cursor, token_ids: "array[int]") -> Progress:
        """Moves the cursor past new output tokens.

        A fold over the tokens: observing them at once or in parts leaves the same cursor.

        Args:
            prediction: What `prepare` returned for the request.
            cursor: Changed in place: epoch, num_known, offset and what serves to find the place
                again.
            token_ids: The output tokens behind those already observed, [num_tokens].
        """

    def reach(self, prediction: Prediction, cursor: Cursor) -> int:
        """Returns how many tokens ahead of the cursor are worth proposing, at least 1."""
        return max(1, len(prediction.token_ids))
