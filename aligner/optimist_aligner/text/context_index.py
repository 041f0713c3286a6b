"""Where the sources say what was said last: offsets by the one, two or three tokens before them."""

from array import array
from typing import Final

import numpy as np
import numpy.typing as npt
from librt.vecs import vec
from mypy_extensions import i32, i64, mypyc_attr

MOST_ORDER: Final = 3
TOKEN_BITS: Final = 20
MOST_TOKEN_ID: Final = (1 << TOKEN_BITS) - 3
"""Three tokens make a key of 60 bits, which mypyc shifts without an object; 0 stands for what is
before the beginning."""
TOKEN_OFFSET: Final = 2
_FEW: Final = 4


def context_key(ids: vec[i32], order: int) -> int:
    """Returns the key of the last `order` tokens, the last one in the highest bits."""
    end: i64 = len(ids)
    key: i64 = 0
    for distance in range(1, order + 1):
        key = (key << TOKEN_BITS) | (i64(ids[end - distance]) + TOKEN_OFFSET)
    return int(key)


@mypyc_attr(acyclic=True)
class Offsets:
    """Ascending offsets of one context: `all[start:end]`."""

    __slots__ = ("all", "end", "start")

    def __init__(self, all_: vec[i32], start: int, end: int) -> None:
        self.all, self.start, self.end = all_, start, end

    def latest(self, most: int) -> list[int]:
        """Returns up to `most` of them, the last ones."""
        return self._list(max(self.start, self.end - most), self.end)

    def rank(self, offset: int) -> int:
        """Returns how many of them are after an offset, which is one of them."""
        return self.end - 1 - self._find(offset)

    def nearest(self, offset: int, most: int) -> list[int]:
        """Returns up to `most` of them around an offset, two thirds of them after it."""
        if self.end - self.start <= most:
            return self._list(self.start, self.end)
        first = max(self.start, min(self._find(offset) - most // 3, self.end - most))
        return self._list(first, first + most)

    def _list(self, start: int, end: int) -> list[int]:
        numbers = self.all
        return [numbers[index] for index in range(start, end)]

    def _find(self, offset: int) -> int:
        """Returns the index of the first that is not less than an offset."""
        numbers, low, high = self.all, i64(self.start), i64(self.end)
        while low < high:
            middle = (low + high) >> 1
            if numbers[middle] < offset:
                low = middle + 1
            else:
                high = middle
        return int(low)


class ContextIndex:
    """Sorted contexts of a text that does not change; 36 bytes a token.

    The last token leads, so that the contexts that end alike are side by side.
    """

    def __init__(self, token_ids: "array[int]") -> None:
        """Takes tokens up to MOST_TOKEN_ID, and separators (-1)."""
        last = np.frombuffer(token_ids, np.intc).astype(np.int64) + TOKEN_OFFSET
        before = np.concatenate([np.zeros(2, np.int64), last])
        columns = [before[: len(last)], before[1 : 1 + len(last)], last]
        keys = last
        self._keys: list[vec[i64]] = []
        self._offsets: list[vec[i32]] = []
        for order in range(1, MOST_ORDER + 1):
            if order > 1:
                keys = (keys << TOKEN_BITS) | columns[MOST_ORDER - order]
            sorted_keys, offsets = _sort(keys, columns[MOST_ORDER - order :])
            self._keys.append(vec[i64](sorted_keys))
            self._offsets.append(vec[i32](offsets))

    def find(self, order: int, key: int) -> Offsets | None:
        """Returns the offsets after a context of 1 to 3 tokens; None if there are none."""
        keys, wanted = self._keys[order - 1], i64(key)
        number: i64 = len(keys)
        start = _bisect(keys, wanted, 0, number)
        if start == number or keys[start] != wanted:
            return None
        end = start + 1
        # Most contexts are few.
        while end < number and end < start + _FEW and keys[end] == wanted:
            end += 1
        if end == start + _FEW:
            end = _bisect(keys, wanted + 1, end, number)
        return Offsets(self._offsets[order - 1], int(start), int(end))


def _bisect(keys: vec[i64], key: i64, low: i64, high: i64) -> i64:
    """Returns the index of the first key between two that is not less than a key."""
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


def _sort(
    keys: npt.NDArray[np.int64], columns: list[npt.NDArray[np.int64]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Sorts by keys, stably: digit by digit of the columns they are made of, the last one last.

    Returns the keys, and the offset after each.

    numpy sorts 16 bits by radix, several times faster than it compares keys.
    """
    order = np.arange(len(keys))
    for column in columns:
        for shift in range(0, int(column.max(initial=0)).bit_length(), 16):
            digits = (column >> shift).astype(np.uint16)
            order = order[np.argsort(digits[order], kind="stable")]
    return keys[order], (order + 1).astype(np.int32)
