"""Where the sources say what was said last: places by the one, two or three tokens before them."""

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from optimist_proposer.core.lines import INT32

MOST_ORDER = 3
TOKEN_BITS = 21
MOST_TOKEN_ID = (1 << TOKEN_BITS) - 3
"""Three tokens make a key of 63 bits; 0 stands for what is before the beginning."""
_OFFSET = 2


def context_key(tokens: list[int], order: int) -> int:
    """Returns the key of the last `order` tokens, the last one in the highest bits."""
    key = 0
    for distance in range(1, order + 1):
        key = (key << TOKEN_BITS) | (tokens[-distance] + _OFFSET)
    return key


class Places(NamedTuple):
    """Ascending places of one context: `all[start:end]`."""

    all: "array[int]"
    start: int
    end: int

    def nearest(self, place: int, most: int) -> "array[int]":
        """Returns up to `most` of them around a place, two thirds of them behind it."""
        if self.end - self.start <= most:
            return self.all[self.start : self.end]
        middle = bisect_left(self.all, place, self.start, self.end)
        first = max(self.start, min(middle - most // 3, self.end - most))
        return self.all[first : first + most]

    def closest(self, place: int, end: int) -> int:
        """Returns the one below `end` that is closest to a place, going back counting twice; -1."""
        middle = bisect_left(self.all, place, self.start, self.end)
        best, distance = -1, 1 << 30
        if middle < self.end and self.all[middle] < end:
            best = self.all[middle]
            distance = best - place
        if middle > self.start and 2 * (place - self.all[middle - 1]) < distance:
            best = self.all[middle - 1]
        return best


class ContextIndex:
    """Sorted contexts of a text that does not change; 36 bytes a token."""

    def __init__(self, token_ids: "array[int]") -> None:
        """Takes tokens up to MOST_TOKEN_ID, and separators (-1)."""
        last = np.frombuffer(token_ids, np.intc).astype(np.int64) + _OFFSET
        places = np.arange(1, len(last) + 1, dtype=np.int32)
        before = np.concatenate([np.zeros(2, np.int64), last])
        two = (last << TOKEN_BITS) | before[1 : 1 + len(last)]
        three = (two << TOKEN_BITS) | before[: len(last)]
        self._orders = [_sort(keys, places) for keys in (last, two, three)]

    def find(self, order: int, key: int) -> Places | None:
        """Returns the places behind a context of 1 to 3 tokens; None if there are none."""
        keys, places = self._orders[order - 1]
        start = bisect_left(keys, key)
        if start == len(keys) or keys[start] != key:
            return None
        return Places(places, start, bisect_right(keys, key, start))


def _sort(
    keys: npt.NDArray[np.int64], places: npt.NDArray[np.int32]
) -> "tuple[array[int], array[int]]":
    order = np.argsort(keys, kind="stable")
    return array("q", keys[order].tobytes()), array(INT32, places[order].tobytes())
