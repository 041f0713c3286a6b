"""What drafts were worth: those that were kept by source, and the positions of predictions."""

import numpy as np

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.core.values import NUM_SOURCES, Int32Array, Int64Array, SlotArray

_DRAFTED, _KEPT = 1, 2
_MOST_UNCOUNTED = 64


class DraftAccounts:
    """Counts, per slot, drafts that were kept, and predicted positions drafted and never kept.

    Drafts are noted with their step and counted later, those of many steps at once.
    """

    def __init__(self, max_num_seqs: int, max_num_predicted_tokens: int) -> None:
        """Starts with empty accounts.

        Args:
            max_num_seqs: Number of slots.
            max_num_predicted_tokens: Of all predictions of a request.
        """
        self._num_accepted = np.zeros((max_num_seqs, NUM_SOURCES), np.int32)
        # Memory that is never touched is never taken.
        self._marks = np.zeros((max_num_seqs, max_num_predicted_tokens), np.uint8)
        self._others: list[tuple[SlotArray, Int32Array, Int32Array]] = []
        self._kept: list[tuple[SlotArray, Int32Array]] = []
        self._drafted: list[tuple[SlotArray, Int32Array]] = []

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

    def record_others(self, slots: SlotArray, sources: Int32Array, kept: Int32Array) -> None:
        """Notes drafts whose positions are not known, or that have none.

        Args:
            slots: Each at most once [num_rows].
            sources: Where the drafts came from, a DraftSource [num_rows].
            kept: How many were accepted and delivered [num_rows].
        """
        self._others.append((slots, sources, kept))

    def record_kept(self, slots: SlotArray, positions: Int32Array) -> None:
        """Notes drafts from windows that were accepted and delivered.

        Args:
            slots: [num_drafts].
            positions: Where they were read from, see `Window.positions` [num_drafts].
        """
        self._kept.append((slots, positions))
        if len(self._kept) >= _MOST_UNCOUNTED:
            self._count()

    def record_drafted(self, slots: SlotArray, positions: Int32Array) -> None:
        """Notes drafts from windows, those that were kept among them or not; see `record_kept`."""
        self._drafted.append((slots, positions))

    def _count(self) -> None:
        if self._others:
            slots, sources, kept = map(np.concatenate, zip(*self._others, strict=True))
            self._others.clear()
            self._add(np.repeat(slots, kept), np.repeat(sources, kept))
        marks = self._marks.reshape(-1)
        if self._drafted:
            slots, positions = map(np.concatenate, zip(*self._drafted, strict=True))
            self._drafted.clear()
            marks[self._predicted_cells(slots, positions)] |= np.uint8(_DRAFTED)
        if self._kept:
            slots, positions = map(np.concatenate, zip(*self._kept, strict=True))
            self._kept.clear()
            marks[self._predicted_cells(slots, positions)] = _DRAFTED | _KEPT
            self._add(slots, np.where(positions >= 0, DraftSource.PREDICTION, DraftSource.NGRAM))

    def _predicted_cells(self, slots: SlotArray, positions: Int32Array) -> Int64Array:
        """Returns where the positions that are in predictions lie in the marks, flattened."""
        cells: Int64Array = slots * np.int64(self._marks.shape[1]) + positions
        return cells[positions >= 0]

    def _add(self, slots: SlotArray, sources: SlotArray) -> None:
        cells = slots * np.int64(NUM_SOURCES) + sources
        counts = np.bincount(cells, minlength=self._num_accepted.size)
        self._num_accepted += counts.reshape(self._num_accepted.shape).astype(np.int32)


def num_rejected_tokens(request: Request) -> int:
    """Returns how many positions of the predictions were drafted at least once and never kept."""
    # Every kept position was drafted too.
    return request.prediction_marks.count(_DRAFTED)
