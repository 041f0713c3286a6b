"""What drafts were worth: those that were kept by source, and the positions of predictions."""

import numpy as np

from optimist_common.drafts import NGRAM, PREDICTION
from optimist_scheduler.core.base.values import NUM_SOURCES, Int32Array, Int64Array, SlotArray
from optimist_scheduler.core.requests.request import Request

_CACHE_LINE = 64
_DRAFTED, _KEPT = 1, 2


class DraftAccounts:
    """Counts, per slot, drafts that were kept, and predicted positions drafted and never kept."""

    def __init__(self, max_num_seqs: int, max_num_predicted_tokens: int) -> None:
        self._num_accepted = np.zeros((NUM_SOURCES, max_num_seqs), np.int32)
        # Memory that is never touched is never taken. With rows of a power of two, those of many
        # slots would share the same few places of the processor's caches.
        row_length = max_num_predicted_tokens + _CACHE_LINE
        self._marks = np.zeros((max_num_seqs, row_length), np.uint8)
        self._first_marks = np.arange(max_num_seqs, dtype=np.int64) * row_length

    def open(self, slot: int, request: Request) -> None:
        """Goes on with a request's account in a slot, which `close` has left."""
        marks = self._marks[slot, : request.num_predicted_tokens]
        if request.num_passes:
            marks[:] = np.frombuffer(request.prediction_marks, np.uint8)
            self._num_accepted[:, slot] = request.num_accepted_by_source
        else:
            marks.fill(0)
            self._num_accepted[:, slot] = 0

    def close(self, slot: int, request: Request) -> None:
        """Hands a slot's account back to its request."""
        request.num_accepted_by_source = tuple(self._num_accepted[:, slot].tolist())
        request.prediction_marks = self._marks[slot, : request.num_predicted_tokens].tobytes()

    def record_others(self, slots: SlotArray, sources: Int32Array | int, kept: Int32Array) -> None:
        """Counts drafts whose positions are not known, or that have none."""
        self._num_accepted[sources, slots] += kept

    def record_kept(self, slots: SlotArray, kept: Int32Array, positions: Int32Array) -> None:
        """Counts drafts from windows that were accepted and delivered."""
        if not len(positions):
            return
        self._num_accepted[PREDICTION][slots] += kept
        cells = self._first_marks.take(slots).repeat(kept)
        # Numpy finds where the smallest is in half the time that a reduction takes.
        if positions.item(positions.argmin()) < 0:
            is_predicted = positions >= 0
            others = slots.repeat(kept)[~is_predicted]
            np.subtract.at(self._num_accepted[PREDICTION], others, 1)
            np.add.at(self._num_accepted[NGRAM], others, 1)
            cells, positions = cells[is_predicted], positions[is_predicted]
        cells += positions
        self._marks.reshape(-1)[cells] = _DRAFTED | _KEPT

    def record_drafted(self, slots: SlotArray, positions: Int32Array | Int64Array) -> None:
        """Notes drafts from windows or found in predictions, kept or not."""
        is_predicted = positions >= 0
        cells = self._first_marks[slots[is_predicted]] + positions[is_predicted]
        self._marks.reshape(-1)[cells] |= np.uint8(_DRAFTED)


def num_rejected_tokens(request: Request) -> int:
    """Returns how many positions of the predictions were drafted at least once and never kept."""
    # Every kept position was drafted too.
    return request.prediction_marks.count(_DRAFTED)
