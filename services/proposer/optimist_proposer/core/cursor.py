"""Where a request's output stands in its prediction."""

import struct
from array import array
from dataclasses import dataclass, field

from optimist_proposer.core.lines import INT32

LOST = -1
"""Offset of a cursor that does not know where the output stands in the prediction."""

_FORMAT = 1
# Epoch and num_known come first: they are the version that a store compares.
_HEADER = struct.Struct("<iiBiiiiiiI")
VERSION_BYTES = 8


@dataclass(slots=True)
class Cursor:
    """All that is kept of one request between observations.

    Packed it takes 37 bytes and 4 bytes for each element of `lines` and `tail`.
    """

    epoch: int = 0
    """Number of times it found its place again."""
    num_known: int = 0
    """Output tokens observed so far."""
    offset: int = 0
    """Position in the prediction of the next output token; LOST if unknown."""
    line: int = 0
    """Predicted line it stands in, or stood in when it was lost."""
    lost_at: int = 0
    """Position in the prediction where it was last lost."""
    matched_from: int = 0
    """Position in the prediction from which on, up to `offset`, the output equals it."""
    window_epoch: int = -1
    """Epoch of the last window sent; -1 before the first."""
    window_end: int = 0
    """Output position behind the last window sent."""
    lines: "array[int]" = field(default_factory=lambda: array(INT32))
    """The completed output lines that are predicted ones, as `Prediction.identities`."""
    tail: "array[int]" = field(default_factory=lambda: array(INT32))
    """While lost, the latest output tokens, as many as the algorithm needs; else empty."""

    def pack(self) -> bytes:
        """Encodes it, to be read by `unpack` in this or another process."""
        header = _HEADER.pack(
            self.epoch,
            self.num_known,
            _FORMAT,
            self.offset,
            self.line,
            self.lost_at,
            self.matched_from,
            self.window_epoch,
            self.window_end,
            len(self.lines),
        )
        return header + self.lines.tobytes() + self.tail.tobytes()

    @classmethod
    def unpack(cls, data: bytes) -> "Cursor":
        """Decodes what `pack` wrote; raises ValueError if it was another format."""
        try:
            epoch, num_known, form, *places, num_lines = _HEADER.unpack_from(data)
        except struct.error:
            raise ValueError("not a packed cursor") from None
        if form != _FORMAT:
            raise ValueError(f"packed cursor has format {form}, not {_FORMAT}")
        offset, line, lost_at, matched_from, window_epoch, window_end = places
        rest = array(INT32, data[_HEADER.size :])
        return cls(
            epoch=epoch,
            num_known=num_known,
            offset=offset,
            line=line,
            lost_at=lost_at,
            matched_from=matched_from,
            window_epoch=window_epoch,
            window_end=window_end,
            lines=rest[:num_lines],
            tail=rest[num_lines:],
        )
