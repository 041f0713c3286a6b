"""Where the sources say what was said last: offsets by the one, two or three tokens before them."""

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

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
_END_BITS: Final = 31
"""A first and an end place share a number of 62 bits, which needs no object either."""
_START_MASK: Final = (1 << _END_BITS) - 1


def context_key(tokens: list[int], order: int) -> int:
    """Returns the key of the last `order` tokens, the last one in the highest bits."""
    key = 0
    for distance in range(1, order + 1):
        key = (key << TOKEN_BITS) | (tokens[-distance] + TOKEN_OFFSET)
    return key


class Offsets:
    """Ascending offsets of one context: `all[start:end]`."""

    __slots__ = ("all", "end", "start")

    def __init__(self, all_: "array[int]", start: int, end: int) -> None:
        self.all, self.start, self.end = all_, start, end

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
    """Sorted contexts of a text that does not change; 28 bytes a token, and some of each token id.

    The last token leads, so that its places are the same ones in all three orders.
    """

    def __init__(self, token_ids: "array[int]") -> None:
        """Takes tokens up to MOST_TOKEN_ID, and separators (-1)."""
        last = np.frombuffer(token_ids, np.intc).astype(np.int64) + TOKEN_OFFSET
        before = np.concatenate([np.zeros(2, np.int64), last])
        columns = [before[: len(last)], before[1 : 1 + len(last)], last]
        keys, orders = last, []
        for order in range(1, MOST_ORDER + 1):
            if order > 1:
                keys = (keys << TOKEN_BITS) | columns[MOST_ORDER - order]
            orders.append(_sort(keys, columns[MOST_ORDER - order :]))
        self._offsets = [array(INT32, offsets.tobytes()) for _, offsets in orders]
        self._keys = [array("q", sorted_keys.tobytes()) for sorted_keys, _ in orders[1:]]
        distinct, starts = np.unique(orders[0][0], return_index=True)
        ends = np.append(starts[1:], len(last))
        places = (starts | (ends << _END_BITS)).tolist()
        self._places: dict[int, int] = dict(zip(distinct.tolist(), places, strict=True))
        """Of the contexts that end with a token, by the token: the first, and the end."""

    def find(self, order: int, key: int) -> Offsets | None:
        """Returns the offsets after a context of 1 to 3 tokens; None if there are none."""
        places = self._places.get(key >> (TOKEN_BITS * (order - 1)), 0)
        if not places:
            return None
        start, end = places & _START_MASK, places >> _END_BITS
        offsets = self._offsets[order - 1]
        if order == 1:
            return Offsets(offsets, start, end)
        keys, number = self._keys[order - 2], end
        if number - start > 1:
            start = bisect_left(keys, key, start, number)
        if start == number or keys[start] != key:
            return None
        end = start + 1
        # Most contexts are few.
        while end < number and end < start + _FEW and keys[end] == key:
            end += 1
        if end == start + _FEW:
            end = bisect_right(keys, key, end, number)
        return Offsets(offsets, start, end)


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
