"""Where a request's output stands in its prediction."""

import struct
from array import array
from dataclasses import dataclass, field

from optimist_proposer.core.lines import INT32

LOST = -1
"""Offset of a cursor that does not know where the output stands in the prediction."""

_FORMAT = 1
# Epoch and num_known come first: they are the version that a store compares.
_HEADER = struct.Struct("<iiBiiiiI")
VERSION_BYTES = 8


@dataclass(slots=True)
class Cursor:
    """All that is kept of one request between observations.

    Packed it takes 29 bytes, 4 bytes per completed output line that is a predicted one, and, while
    lost, 4 bytes per token of the current output line (no more than the longest predicted line has,
    and one).
    """

    epoch: int = 0
    """Number of times it found its place again."""
    num_known: int = 0
    """Output tokens observed so far."""
    offset: int = 0
    """Position in the prediction of the next output token; LOST if unknown."""
    line: int = 0
    """Predicted line it stands in, or stood in when it was lost."""
    window_epoch: int = -1
    """Epoch of the last window sent; -1 before the first."""
    window_end: int = 0
    """Output position behind the last window sent."""
    lines: "array[int]" = field(default_factory=lambda: array(INT32))
    """The completed output lines that are predicted ones, as `Prediction.identities`."""
    current_line: "array[int]" = field(default_factory=lambda: array(INT32))
    """While lost, the output tokens behind the last completed line; empty while aligned."""

    def pack(self) -> bytes:
        """Encodes it, to be read by `unpack` in this or another process."""
        header = _HEADER.pack(
            self.epoch,
            self.num_known,
            _FORMAT,
            self.offset,
            self.line,
            self.window_epoch,
            self.window_end,
            len(self.lines),
        )
        return header + self.lines.tobytes() + self.current_line.tobytes()

    @classmethod
    def unpack(cls, data: bytes) -> "Cursor":
        """Decodes what `pack` wrote; raises ValueError if it was another format."""
        try:
            epoch, num_known, form, offset, line, window_epoch, window_end, size = (
                _HEADER.unpack_from(data)
            )
        except struct.error:
            raise ValueError("not a packed cursor") from None
        if form != _FORMAT:
            raise ValueError(f"packed cursor has format {form}, not {_FORMAT}")
        rest = array(INT32, data[_HEADER.size :])
        lines, current_line = rest[:size], rest[size:]
        return cls(epoch, num_known, offset, line, window_epoch, window_end, lines, current_line)
