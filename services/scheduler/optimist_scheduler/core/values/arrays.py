"""The types of columns, and what is done with them everywhere."""

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
SlotArray = npt.NDArray[np.integer]
"""Slots: of int64 in the state and in plans, as numpy takes several times as long to index by
others."""
BoolArray = npt.NDArray[np.bool_]
Float32Array = npt.NDArray[np.float32]
FloatArray = npt.NDArray[np.float64]


def is_same(one: npt.NDArray[np.integer], other: npt.NDArray[np.integer]) -> bool:
    """Tells whether two columns of one type are the same, by bytes: numpy takes far longer."""
    return one.tobytes() == other.tobytes()
