"""What drafts were worth: those that were kept by source, and the positions of predictions."""

import numpy as np

from optimist_common.draft_source import DraftSource
from optimist_scheduler.core.requests.table import Request
from optimist_scheduler.core.values.arrays import BoolArray, Int32Array, Int64Array, SlotArray
from optimist_scheduler.core.values.output import NUM_SOURCES

_DRAFTED, _KEPT = 1, 2
_MOST_UNCOUNTED = 64


class DraftAccounts:
    """Counts, per slot, drafts that were kept, and predicted positions drafted and never kept.

    Verifications are noted when they happen and counted later, many at once.
    """

    def __init__(
        self, max_num_seqs: int, max_num_predicted_tokens: int, positions: Int32Array
    ) -> None:
        """Starts with empty accounts.

        Args:
            max_num_seqs: Number of slots.
            max_num_predicted_tokens: Of all predictions of a request.
            positions: Where each token of likeliest paths was read from, see `PlacedWindows`
                [max_num_seqs, max_length].
        """
        self._num_accepted = np.zeros((max_num_seqs, NUM_SOURCES), np.int32)
        # Memory that is never touched is never taken.
        self._marks = np.zeros((max_num_seqs, max_num_predicted_tokens), np.uint8)
        self._positions = positions.reshape(-1)
        self._others: list[tuple[SlotArray | Int32Array, ...]] = []
        self._runs: list[tuple[SlotArray | Int32Array | Int64Array, ...]] = []
        self._nodes: list[tuple[SlotArray | Int32Array | BoolArray, ...]] = []

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
        """Notes drafts that do not come from windows.

        Args:
            slots: Each at most once [num_rows].
            sources: Where the drafts came from, a DraftSource [num_rows].
            kept: How many were accepted and delivered [num_rows].
        """
        self._others.append((slots, sources, kept))

    def record_runs(self, slots: SlotArray, cells: Int64Array, kept: Int32Array) -> None:
        """Notes drafts of likeliest paths that were all kept.

        Args:
            slots: Each at most once [num_rows].
            cells: Where the first of them lies in the plane of positions, which is not written
                there again before the accounts are closed [num_rows].
            kept: How many of them were accepted and delivered [num_rows].
        """
        self._runs.append((slots, cells, kept))
        if len(self._runs) >= _MOST_UNCOUNTED:
            self._count()

    def record_nodes(self, slots: SlotArray, positions: Int32Array, is_kept: BoolArray) -> None:
        """Notes single drafts of windows.

        Args:
            slots: [num_nodes].
            positions: Where they were read from, see `Window.positions` [num_nodes].
            is_kept: Whether it was accepted and delivered [num_nodes].
        """
        self._nodes.append((slots, positions, is_kept))

    def _count(self) -> None:
        if self._others:
            slots, sources, kept = map(np.concatenate, zip(*self._others, strict=True))
            self._others.clear()
            self._add(slots * np.int32(NUM_SOURCES) + sources, kept)
        if self._runs:
            self._count_runs(*map(np.concatenate, zip(*self._runs, strict=True)))
            self._runs.clear()
        if self._nodes:
            slots, positions, is_kept = map(np.concatenate, zip(*self._nodes, strict=True))
            self._nodes.clear()
            self._count_nodes(slots, positions, is_kept)

    def _count_runs(self, slots: SlotArray, cells: Int64Array, kept: Int32Array) -> None:
        before = np.cumsum(kept) - kept
        places = np.repeat(cells - before, kept) + np.arange(int(kept.sum()))
        positions = self._positions.take(places, mode="clip")
        if len(positions) and int(positions.min()) >= 0:
            # As it is mostly.
            marked = np.repeat(slots * np.int64(self._marks.shape[1]), kept) + positions
            self._marks.reshape(-1)[marked] = _DRAFTED | _KEPT
            self._add(slots * np.int32(NUM_SOURCES) + DraftSource.PREDICTION, kept)
        else:
            is_kept = np.ones(len(positions), np.bool_)
            self._count_nodes(np.repeat(slots, kept), positions, is_kept)

    def _count_nodes(self, slots: SlotArray, positions: Int32Array, is_kept: BoolArray) -> None:
        is_predicted = positions >= 0
        # A worker that drafts from what it was not given must not mark what is not there.
        inside = is_predicted & (positions < self._marks.shape[1])
        self._marks[slots[inside], positions[inside]] |= np.uint8(_DRAFTED)
        marked = inside & is_kept
        self._marks[slots[marked], positions[marked]] |= np.uint8(_KEPT)
        sources = np.where(is_predicted[is_kept], DraftSource.PREDICTION, DraftSource.NGRAM)
        cells = slots[is_kept] * np.int32(NUM_SOURCES) + sources
        self._add(cells, np.ones_like(cells))

    def _add(self, cells: Int32Array, kept: Int32Array) -> None:
        np.add.at(self._num_accepted.reshape(-1), cells, kept)


def num_rejected_tokens(request: Request) -> int:
    """Returns how many positions of the predictions were drafted at least once and never kept."""
    # Every kept position was drafted too.
    return request.prediction_marks.count(_DRAFTED)
