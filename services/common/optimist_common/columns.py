"""Columns of numbers on the wire: little-endian int32 or float32 in `bytes`."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int32Column = npt.NDArray[np.int32]
Float32Column = npt.NDArray[np.float32]

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")
INT32_BYTES = _INT32.itemsize
"""Bytes of an integer in a column."""


def to_bytes(values: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """Encodes integers as an int32 column; raises OverflowError if one does not fit."""
    if isinstance(values, np.ndarray) and values.dtype is _INT32:
        return values.tobytes()
    return np.asarray(values, dtype=_INT32).tobytes() if len(values) else b""


def from_bytes(data: bytes) -> Int32Column:
    """Decodes an int32 column, [num_rows], read-only; raises ValueError if the length is off."""
    return np.frombuffer(data, _INT32)


def floats_to_bytes(values: Sequence[float] | npt.NDArray[np.floating]) -> bytes:
    """Encodes numbers as a float32 column."""
    return np.asarray(values, dtype=_FLOAT32).tobytes()


def floats_from_bytes(data: bytes) -> Float32Column:
    """Decodes a float32 column, [num_rows], read-only; raises ValueError if the length is off."""
    return np.frombuffer(data, dtype=_FLOAT32)
