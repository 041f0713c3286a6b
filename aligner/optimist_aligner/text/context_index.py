"""Where a text says what was said last: offsets by the one, two or three tokens before them."""

from bisect import bisect_left
from collections import defaultdict
from typing import Final

MOST_ORDER: Final = 3
TOKEN_BITS: Final = 20
MOST_TOKEN_ID: Final = (1 << TOKEN_BITS) - 3
"""So that three tokens, separators too, make a key of 60 bits where they are looked up by one."""

Context = tuple[int, ...]
"""Some tokens that follow each other, at most MOST_ORDER."""


class Offsets(list[int]):
    """Ascending offsets of one context."""

    def latest(self, most: int) -> list[int]:
        """Returns up to `most` of them, at least 1, the last ones."""
        return self[-most:]

    def rank(self, offset: int) -> int:
        """Returns how many of them are after an offset, which is one of them."""
        return len(self) - 1 - bisect_left(self, offset)

    def nearest(self, offset: int, most: int) -> list[int]:
        """Returns up to `most` of them around an offset, two thirds of them after it."""
        first = max(0, min(bisect_left(self, offset) - most // 3, len(self) - most))
        return self[first : first + most]


_NONE: Final = Offsets()


class ContextIndex:
    """Offsets by the context before them, in a text or in what is appended to one."""

    def __init__(self, text: list[int], start: int = 0) -> None:
        """Indexes a text from `start` on, and what is appended to it before something is found."""
        self._text, self._start, self._end = text, start, start
        self._offsets: defaultdict[Context, Offsets] = defaultdict(Offsets)
        self._catch_up()

    def find(self, context: Context) -> Offsets:
        """Returns the offsets after a context; the last one may be the end of the text."""
        self._catch_up()
        return self._offsets.get(context, _NONE)

    def _catch_up(self) -> None:
        for end in range(self._end + 1, len(self._text) + 1):
            for order in range(1, min(MOST_ORDER, end - self._start) + 1):
                self._offsets[tuple(self._text[end - order : end])].append(end)
        self._end = len(self._text)
