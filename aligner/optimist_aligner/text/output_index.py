"""Where the output itself says what was said last."""

from typing import Final

from optimist_aligner.text.context_index import TOKEN_BITS, TOKEN_OFFSET

_NOWHERE: Final = list[int]()
_TOKEN_MASK: Final = (1 << TOKEN_BITS) - 1


class OutputIndex:
    """Offsets by the one, two or three tokens before them, oldest first.

    They are looked up where the output is no mere copy: what is copied waits until then, as many
    tokens at once cost less, and those of an end that is copied nothing.
    """

    def __init__(self, text: list[int]) -> None:
        """Indexes what is appended to a text from now on."""
        self._text, self._start = text, len(text)
        self._num_indexed = len(text)
        # Most contexts are met once: a list for each would be most of the memory. Those of three
        # tokens are few of those of two, and are found there.
        self._ones: dict[int, int | list[int]] = {}
        self._twos: dict[int, int | list[int]] = {}

    def _catch_up(self) -> None:
        """Takes the tokens that were appended since the last time."""
        ones, twos = self._ones, self._twos
        text, start, first = self._text, self._start, self._num_indexed
        self._num_indexed = len(text)
        last = text[first - 1] + TOKEN_OFFSET if first > start else 0
        for number, token_id in enumerate(text[first:], first + 1):
            key = token_id + TOKEN_OFFSET
            # One object for both: mypyc makes one of a plain integer each time.
            offset: int | list[int] = number
            _add(ones, key, offset)
            if last:
                _add(twos, (key << TOKEN_BITS) | last, offset)
            last = key

    def find_latest(self, order: int, key: int, most: int) -> list[int]:
        """Returns up to `most` offsets after a context, the latest ones.

        The last one may be the end of the text.
        """
        if self._num_indexed < len(self._text):
            self._catch_up()
        if order < 3:
            offsets = (self._ones if order == 1 else self._twos).get(key, _NOWHERE)
            return [offsets] if isinstance(offsets, int) else offsets[-most:]
        return self._find_threes(key, most)

    def count(self, token_id: int) -> int:
        """Returns how often the output has a token."""
        if self._num_indexed < len(self._text):
            self._catch_up()
        offsets = self._ones.get(token_id + TOKEN_OFFSET, _NOWHERE)
        return 1 if isinstance(offsets, int) else len(offsets)

    def _find_threes(self, key: int, most: int) -> list[int]:
        pairs = self._twos.get(key >> TOKEN_BITS, _NOWHERE)
        offsets = [pairs] if isinstance(pairs, int) else pairs
        text, earliest = self._text, self._start + 3
        before = (key & _TOKEN_MASK) - TOKEN_OFFSET
        found: list[int] = []
        index = len(offsets)
        while index > 0 and len(found) < most:
            index -= 1
            offset = offsets[index]
            if offset < earliest:
                break
            if text[offset - 3] == before:
                found.append(offset)
        found.reverse()
        return found


def _add(order: dict[int, int | list[int]], key: int, offset: int | list[int]) -> None:
    offsets = order.setdefault(key, offset)
    if offsets is offset or not isinstance(offset, int):
        return
    if isinstance(offsets, int):
        order[key] = [offsets, offset]
    else:
        offsets.append(offset)
