"""Columns of numbers on the wire: little-endian int32 or float32 in `bytes`."""

import sys
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# Looked up in `np` each time, they take a fifth longer.
from numpy import frombuffer, ndarray

Int32Column = npt.NDArray[np.int32]
Float32Column = npt.NDArray[np.float32]

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")
INT32_BYTES = _INT32.itemsize
"""Bytes of an integer in a column."""


def to_bytes(values: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """Encodes integers as an int32 column; raises OverflowError if one does not fit."""
    if isinstance(values, ndarray):
        return (values if values.dtype is _INT32 else values.astype(_INT32)).tobytes()
    return np.asarray(values, dtype=_INT32).tobytes() if len(values) else b""


def from_bytes(data: bytes) -> Int32Column:
    """Decodes an int32 column, [num_rows], read-only; raises ValueError if the length is off."""
    return frombuffer(data, _INT32)


def array_from_bytes(data: bytes) -> "array[int]":
    """Decodes an int32 column, [num_rows]; raises ValueError if the length is off."""
    values = array("i", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def floats_to_bytes(values: Sequence[float] | npt.NDArray[np.floating]) -> bytes:
    """Encodes numbers as a float32 column."""
    return np.asarray(values, dtype=_FLOAT32).tobytes()


def floats_from_bytes(data: bytes) -> Float32Column:
    """Decodes a float32 column, [num_rows], read-only; raises ValueError if the length is off."""
    return np.frombuffer(data, dtype=_FLOAT32)
