"""What predictions were worth."""

import numpy as np

from optimist_scheduler.core.arrays import Int32Array
from optimist_scheduler.core.requests import Request

_DRAFTED, _KEPT = 1, 2
_MOST_UNCOUNTED = 64


class PredictionAccounts:
    """Counts, per slot, predicted tokens that were kept, and positions drafted and never kept.

    Verifications are noted when they happen and counted later, many at once.
    """

    def __init__(self, max_num_seqs: int, max_num_predicted_tokens: int) -> None:
        self._num_accepted_tokens = np.zeros(max_num_seqs, np.int32)
        # Memory that is never touched is never taken.
        self._marks = np.zeros((max_num_seqs, max_num_predicted_tokens), np.uint8)
        self._uncounted: list[tuple[Int32Array, Int32Array, Int32Array, Int32Array]] = []

    def open(self, slot: int, request: Request) -> None:
        """Goes on with a request's account in a slot, which `close` has left."""
        marks = self._marks[slot, : request.num_predicted_tokens]
        marks[:] = np.frombuffer(request.prediction_marks, np.uint8) if request.num_passes else 0
        self._num_accepted_tokens[slot] = request.num_accepted_tokens

    def close(self, slot: int, request: Request) -> None:
        """Hands a slot's account back to its request."""
        self._count()
        request.num_accepted_tokens = int(self._num_accepted_tokens[slot])
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
        self._uncounted.append((slots, offsets, drafted, kept))
        if len(self._uncounted) >= _MOST_UNCOUNTED:
            self._count()

    def _count(self) -> None:
        if not self._uncounted:
            return
        columns = map(np.concatenate, zip(*self._uncounted, strict=True))
        slots, offsets, drafted, kept = columns
        self._uncounted.clear()
        np.add.at(self._num_accepted_tokens, slots, kept)
        of_row = np.arange(int(drafted.sum())) - np.repeat(np.cumsum(drafted) - drafted, drafted)
        rows, places = np.repeat(slots, drafted), of_row + np.repeat(offsets, drafted)
        self._marks[rows, places] |= _DRAFTED
        is_kept = of_row < np.repeat(kept, drafted)
        self._marks[rows[is_kept], places[is_kept]] |= _KEPT


def num_rejected_tokens(request: Request) -> int:
    """Returns how many positions of the prediction were drafted at least once and never kept."""
    # Every kept position was drafted too.
    return request.prediction_marks.count(_DRAFTED)
