"""What predictions were worth."""

import numpy as np

from optimist_scheduler.core.requests import Int32Array, Request

_DRAFTED, _KEPT = 1, 2


class PredictionAccounts:
    """Counts, per slot, predicted tokens that were kept, and positions drafted and never kept."""

    def __init__(self, max_num_seqs: int, max_num_predicted_tokens: int) -> None:
        self.num_accepted_tokens = np.zeros(max_num_seqs, np.int32)
        """Predicted tokens that were kept [max_num_seqs]."""
        # Memory that is never touched is never taken.
        self._marks = np.zeros((max_num_seqs, max_num_predicted_tokens), np.uint8)

    def open(self, slot: int, request: Request) -> None:
        """Goes on with a request's account in a slot."""
        marks = self._marks[slot, : request.num_predicted_tokens]
        marks[:] = (
            np.frombuffer(request.prediction_marks, np.uint8)
            if len(request.prediction_marks)
            else 0
        )
        self.num_accepted_tokens[slot] = request.num_accepted_tokens

    def close(self, slot: int, request: Request) -> None:
        """Hands a slot's account back to its request."""
        request.num_accepted_tokens = int(self.num_accepted_tokens[slot])
        request.prediction_marks = self._marks[slot, : request.num_predicted_tokens].tobytes()

    def record(
        self, slots: Int32Array, offsets: Int32Array, drafted: Int32Array, kept: Int32Array
    ) -> None:
        """Notes one verification per slot.

        Args:
            slots: Each at most once [num_rows].
            offsets: Position in the prediction of the first draft [num_rows].
            drafted: Predicted tokens that were verified [num_rows].
            kept: How many of them, from the front, were accepted and delivered [num_rows].
        """
        self.num_accepted_tokens[slots] += kept
        firsts = np.cumsum(drafted) - drafted
        places = np.arange(int(drafted.sum()))
        of_row = places - np.repeat(firsts, drafted)
        marks = np.where(of_row < np.repeat(kept, drafted), _DRAFTED | _KEPT, _DRAFTED)
        self._marks[np.repeat(slots, drafted), of_row + np.repeat(offsets, drafted)] |= (
            marks.astype(np.uint8)
        )


def num_rejected_tokens(request: Request) -> int:
    """Returns how many positions of the prediction were drafted at least once and never kept."""
    # Every kept position was drafted too.
    return request.prediction_marks.count(_DRAFTED)
