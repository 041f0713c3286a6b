"""What drafts were worth: those that were kept by source, and the positions of predictions."""

import numpy as np

from optimist_common.draft_source import DraftSource
from optimist_scheduler.core.arrays import Int32Array
from optimist_scheduler.core.output import NUM_SOURCES
from optimist_scheduler.core.requests import Request

_DRAFTED, _KEPT = 1, 2
_MOST_UNCOUNTED = 64


class DraftAccounts:
    """Counts, per slot, drafts that were kept, and predicted positions drafted and never kept.

    Verifications are noted when they happen and counted later, many at once.
    """

    def __init__(self, max_num_seqs: int, max_num_predicted_tokens: int) -> None:
        self._num_accepted = np.zeros((max_num_seqs, NUM_SOURCES), np.int32)
        # Memory that is never touched is never taken.
        self._marks = np.zeros((max_num_seqs, max_num_predicted_tokens), np.uint8)
        self._uncounted: list[tuple[Int32Array, ...]] = []

    def open(self, slot: int, request: Request) -> None:
        """Goes on with a request's account in a slot, which `close` has left."""
        marks = self._marks[slot, : request.num_predicted_tokens]
        marks[:] = np.frombuffer(request.prediction_marks, np.uint8) if request.num_passes else 0
        self._num_accepted[slot] = request.num_accepted_by_source

    def close(self, slot: int, request: Request) -> None:
        """Hands a slot's account back to its request."""
        self._count()
        request.num_accepted_by_source = tuple(self._num_accepted[slot].tolist())
        request.prediction_marks = self._marks[slot, : request.num_predicted_tokens].tobytes()

    def record(
        self,
        slots: Int32Array,
        sources: Int32Array,
        offsets: Int32Array,
        drafted: Int32Array,
        kept: Int32Array,
    ) -> None:
        """Notes one verification per slot.

        Args:
            slots: Each at most once [num_rows].
            sources: Where the drafts came from, a DraftSource [num_rows].
            offsets: Position in the prediction of the first draft, if they came from there
                [num_rows].
            drafted: Drafts that were verified; predicted ones all at positions behind `offsets`
                [num_rows].
            kept: How many of them, from the front, were accepted and delivered [num_rows].
        """
        self._uncounted.append((slots, sources, offsets, drafted, kept))
        if len(self._uncounted) >= _MOST_UNCOUNTED:
            self._count()

    def _count(self) -> None:
        if not self._uncounted:
            return
        columns = map(np.concatenate, zip(*self._uncounted, strict=True))
        slots, sources, offsets, drafted, kept = columns
        self._uncounted.clear()
        cells = slots * np.int32(NUM_SOURCES) + sources
        np.add.at(self._num_accepted.reshape(-1), cells, kept)
        if (sources > DraftSource.PREDICTION).any():
            predicted = sources == DraftSource.PREDICTION
            slots, offsets = slots[predicted], offsets[predicted]
            drafted, kept = drafted[predicted], kept[predicted]
        of_row = np.arange(int(drafted.sum())) - np.repeat(np.cumsum(drafted) - drafted, drafted)
        rows, places = np.repeat(slots, drafted), of_row + np.repeat(offsets, drafted)
        is_kept = of_row < np.repeat(kept, drafted)
        # A worker that drafts from what it was not given must not mark what is not there.
        inside = (places >= 0) & (places < self._marks.shape[1])
        if not inside.all():
            rows, places, is_kept = rows[inside], places[inside], is_kept[inside]
        self._marks[rows, places] |= _DRAFTED
        self._marks[rows[is_kept], places[is_kept]] |= _KEPT


def num_rejected_tokens(request: Request) -> int:
    """Returns how many positions of the prediction were drafted at least once and never kept."""
    # Every kept position was drafted too.
    return request.prediction_marks.count(_DRAFTED)
