"""Where the sources say what was said last: offsets by the one, two or three tokens before them."""

from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from optimist_aligner.text.sources import INT32

MOST_ORDER: Final = 3
TOKEN_BITS: Final = 20
MOST_TOKEN_ID: Final = (1 << TOKEN_BITS) - 3
"""Three tokens make a key of 60 bits, which mypyc shifts without an object; 0 stands for what is
before the beginning."""
TOKEN_OFFSET: Final = 2
_FEW: Final = 4


def context_key(tokens: list[int], order: int) -> int:
    """Returns the key of the last `order` tokens, the last one in the highest bits."""
    key = 0
    for distance in range(1, order + 1):
        key = (key << TOKEN_BITS) | (tokens[-distance] + TOKEN_OFFSET)
    return key


class Offsets(NamedTuple):
    """Ascending offsets of one context: `all[start:end]`."""

    all: "array[int]"
    start: int
    end: int

    def latest(self, most: int) -> "array[int]":
        """Returns up to `most` of them, the last ones."""
        return self.all[max(self.start, self.end - most) : self.end]

    def rank(self, offset: int) -> int:
        """Returns how many of them are after an offset, which is one of them."""
        return self.end - 1 - bisect_left(self.all, offset, self.start, self.end)

    def nearest(self, offset: int, most: int) -> "array[int]":
        """Returns up to `most` of them around an offset, two thirds of them after it."""
        if self.end - self.start <= most:
            return self.all[self.start : self.end]
        middle = bisect_left(self.all, offset, self.start, self.end)
        first = max(self.start, min(middle - most // 3, self.end - most))
        return self.all[first : first + most]


class ContextIndex:
    """Sorted contexts of a text that does not change; 36 bytes a token."""

    def __init__(self, token_ids: "array[int]") -> None:
        """Takes tokens up to MOST_TOKEN_ID, and separators (-1)."""
        last = np.frombuffer(token_ids, np.intc).astype(np.int64) + TOKEN_OFFSET
        before = np.concatenate([np.zeros(2, np.int64), last])
        columns = [before[: len(last)], before[1 : 1 + len(last)], last]
        keys = last
        orders = [_sort(keys, columns[2:])]
        for order in (2, 3):
            keys = (keys << TOKEN_BITS) | columns[MOST_ORDER - order]
            orders.append(_sort(keys, columns[MOST_ORDER - order :]))
        self._orders = orders

    def find(self, order: int, key: int) -> Offsets | None:
        """Returns the offsets after a context of 1 to 3 tokens; None if there are none."""
        keys, offsets = self._orders[order - 1]
        start, number = bisect_left(keys, key), len(keys)
        if start == number or keys[start] != key:
            return None
        end = start + 1
        # Most contexts are few.
        while end < number and end < start + _FEW and keys[end] == key:
            end += 1
        return Offsets(offsets, start, end if end < start + _FEW else bisect_right(keys, key, end))


def _sort(
    keys: npt.NDArray[np.int64], columns: list[npt.NDArray[np.int64]]
) -> "tuple[array[int], array[int]]":
    """Sorts by keys, stably: digit by digit of the columns they are made of, the last one last.

    numpy sorts 16 bits by radix, several times faster than it compares keys.
    """
    order = np.arange(len(keys))
    for column in columns:
        for shift in range(0, int(column.max(initial=0)).bit_length(), 16):
            digits = (column >> shift).astype(np.uint16)
            order = order[np.argsort(digits[order], kind="stable")]
    offsets = (order + 1).astype(np.int32)
    return array("q", keys[order].tobytes()), array(INT32, offsets.tobytes())
