"""Examples of right and wrong candidates, as arrays to fit the proposer's weights to."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimist_aligner.model.layout import NUM_WEIGHTS

WIDTH = 12
"""Most features of a row."""
NUM_NONE_FEATURES = 5
NO_FEATURE = NUM_WEIGHTS
"""Fills up features; its weight stays 0."""
NO_FEATURES = (NO_FEATURE,) * NUM_NONE_FEATURES


@dataclass(frozen=True, slots=True)
class Examples:
    """Groups of rows; in each group at most one token is right, which several rows may be."""

    features: npt.NDArray[np.int32]
    """Of each row, filled up with NO_FEATURE [num_rows, WIDTH]."""
    is_right: npt.NDArray[np.bool_]
    """Whether a row's token is the right one [num_rows]."""
    logits: npt.NDArray[np.float64]
    """Logit of the first node, if the row is a node behind it [num_rows]."""
    kinds: npt.NDArray[np.int64]
    """Kind of the candidate [num_rows]."""
    bounds: npt.NDArray[np.int64]
    """First row of each group, and the end of the last [num_groups + 1]."""
    none_features: npt.NDArray[np.int32]
    """Features of no row being right, filled up too [num_groups, NUM_NONE_FEATURES]."""

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self.bounds) - 1


def join(examples: Sequence[Examples]) -> Examples:
    """Returns the groups of all, in their order."""
    num_rows = np.cumsum([0, *(each.bounds[-1] for each in examples)])
    bounds = [each.bounds[1:] + start for each, start in zip(examples, num_rows, strict=False)]
    return Examples(
        np.concatenate([each.features for each in examples]),
        np.concatenate([each.is_right for each in examples]),
        np.concatenate([each.logits for each in examples]),
        np.concatenate([each.kinds for each in examples]),
        np.concatenate([np.zeros(1, np.int64), *bounds]),
        np.concatenate([each.none_features for each in examples]),
    )


class ExampleBuilder:
    """Takes rows one by one."""

    def __init__(self) -> None:
        self._features: list[tuple[int, ...]] = []
        self._none: list[tuple[int, ...]] = []
        self._right = bytearray()
        self._kinds = bytearray()
        self._logits: list[float] = []
        self._bounds = [0]

    def add_row(
        self, features: tuple[int, ...], is_right: bool, logit: float = 0.0, kind: int = 0
    ) -> None:
        """Adds a row to the group that the next `end_group` ends."""
        self._features.append(features + (NO_FEATURE,) * (WIDTH - len(features)))
        self._right.append(is_right)
        self._logits.append(logit)
        self._kinds.append(kind)

    def end_group(self, none: tuple[int, ...] = NO_FEATURES) -> None:
        """Ends a group, with the features of none of its rows being right."""
        self._bounds.append(len(self._features))
        self._none.append(none + (NO_FEATURE,) * (NUM_NONE_FEATURES - len(none)))

    def build(self) -> Examples:
        """Returns what was added."""
        return Examples(
            np.array(self._features, np.int32).reshape(-1, WIDTH),
            np.array(self._right, np.bool_),
            np.array(self._logits, np.float64),
            np.array(self._kinds, np.int64),
            np.array(self._bounds, np.int64),
            np.array(self._none, np.int32).reshape(-1, NUM_NONE_FEATURES),
        )
