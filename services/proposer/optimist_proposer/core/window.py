"""Which part of the prediction a request is sent, and when."""

from array import array
from dataclasses import dataclass

from optimist_proposer.core.cursor import LOST, Cursor
from optimist_proposer.core.prediction import Prediction


@dataclass(frozen=True, slots=True)
class Alternative:
    """A continuation that departs from a window."""

    offset: int
    """Index in the window's tokens of the token in whose place this begins."""
    prediction_offset: int
    """Position in the prediction of the first token."""
    token_ids: "array[int]"
    """The tokens, the first one different from the window's."""


@dataclass(frozen=True, slots=True)
class Window:
    """The expected continuation of one request."""

    epoch: int
    """Re-alignments of the request so far."""
    base: int
    """Output position of the first token."""
    prediction_offset: int
    """Position in the prediction of the first token; LOST if the cursor is lost."""
    token_ids: "array[int]"
    """Expected tokens, [num_tokens]; empty when the cursor is lost or the prediction used up."""
    alternatives: tuple[Alternative, ...] = ()
    """Other continuations, most likely first."""


def next_window(prediction: Prediction, cursor: Cursor, max_tokens: int) -> Window | None:
    """Returns the window to send now and notes it in the cursor; None while the last one holds.

    A window is sent at first, when the cursor found another place, when it is lost before the end
    of what was sent, and when less than half a window is left of that and the prediction has more.

    Args:
        prediction: The request's prediction.
        cursor: Its cursor behind all observed tokens.
        max_tokens: Most tokens in a window, at least 1.
    """
    num_ahead = max(cursor.window_end - cursor.num_known, 0)
    if cursor.offset == LOST:
        if num_ahead == 0:
            return None
        return _send(cursor, prediction.token_ids[:0])
    if cursor.window_epoch == cursor.epoch:
        used_up = cursor.offset + num_ahead >= len(prediction.token_ids)
        if used_up or 2 * num_ahead >= max_tokens:
            return None
    return _send(cursor, prediction.token_ids[cursor.offset : cursor.offset + max_tokens])


def _send(cursor: Cursor, token_ids: "array[int]") -> Window:
    cursor.window_epoch = cursor.epoch
    cursor.window_end = cursor.num_known + len(token_ids)
    return Window(cursor.epoch, cursor.num_known, cursor.offset, token_ids)
