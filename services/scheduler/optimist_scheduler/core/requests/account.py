"""What drafts were worth: those that were kept by source, and the positions of predictions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from optimist_common.drafts import PREDICTION, DraftSource
from optimist_scheduler.core.base.values import NUM_SOURCES, Int32Array, Int64Array, SlotArray
from optimist_scheduler.core.requests.request import Request

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
        self._kept: list[tuple[SlotArray, Int32Array, Int32Array]] = []
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

    def record_kept(self, slots: SlotArray, kept: Int32Array, positions: Int32Array) -> None:
        """Notes drafts from windows that were accepted and delivered.

        Args:
            slots: [num_rows].
            kept: How many there are of each row [num_rows].
            positions: Where they were read from, see `Window.positions` [sum(kept)].
        """
        self._kept.append((slots, kept, positions))
        if len(self._kept) >= _MOST_UNCOUNTED:
            self._count()

    def record_drafted(self, slots: SlotArray, positions: Int32Array) -> None:
        """Notes drafts from windows, kept or not.

        Args:
            slots: [num_drafts].
            positions: Where they were read from, see `Window.positions` [num_drafts].
        """
        self._drafted.append((slots, positions))

    def _count(self) -> None:
        if self._others:
            slots, sources, kept = map(_join, zip(*self._others, strict=True))
            self._others.clear()
            self._add(slots, sources, kept)
        if self._drafted:
            slots, positions = map(_join, zip(*self._drafted, strict=True))
            self._drafted.clear()
            is_predicted = positions >= 0
            cells = self._mark_cells(slots[is_predicted], positions[is_predicted])
            self._marks.reshape(-1)[cells] |= np.uint8(_DRAFTED)
        if self._kept:
            slots, kept, positions = map(_join, zip(*self._kept, strict=True))
            self._kept.clear()
            self._add(slots, PREDICTION, kept)
            slots = slots.repeat(kept)
            if len(positions) and np.minimum.reduce(positions) < 0:
                is_predicted = positions >= 0
                others = slots[~is_predicted]
                self._add(others, PREDICTION, -1)
                self._add(others, DraftSource.NGRAM, 1)
                slots, positions = slots[is_predicted], positions[is_predicted]
            self._marks.reshape(-1)[self._mark_cells(slots, positions)] = _DRAFTED | _KEPT

    def _mark_cells(self, slots: SlotArray, positions: Int32Array) -> Int64Array:
        """Returns where positions of predictions lie in the marks, flattened."""
        cells: Int64Array = slots * np.int64(self._marks.shape[1])
        cells += positions
        return cells

    def _add(self, slots: SlotArray, sources: Int32Array | int, number: Int32Array | int) -> None:
        """Adds to the accepted drafts of slots, which may be there more than once."""
        np.add.at(self._num_accepted.reshape(-1), slots * NUM_SOURCES + sources, number)


def _join(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    # Mostly a request ends with each step or so: then there is nothing to join.
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def num_rejected_tokens(request: Request) -> int:
    """Returns how many positions of the predictions were drafted at least once and never kept."""
    # Every kept position was drafted too.
    return request.prediction_marks.count(_DRAFTED)
