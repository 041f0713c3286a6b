"""Where the output itself says what was said last."""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from optimist_aligner.text.context_index import TOKEN_BITS, TOKEN_OFFSET
from optimist_aligner.text.growing_text import GrowingText

_TOKEN_MASK: Final = (1 << TOKEN_BITS) - 1
_FEWEST_HEADS: Final = 256
"""A power of two, as their number always is."""


class _Chains:
    """Offsets by a hash of what is before them, each linked to the one before it (as in LZ77).

    Attributes:
        heads: The last offset by hash; 0 for none [num_heads].
        before: The offset before each, by how far that is in the output; 0 for none.
    """

    __slots__ = ("before", "heads")

    def __init__(self, num_heads: int) -> None:
        self.heads = vec[i32]([0] * num_heads)
        self.before = vec[i32]()


class OutputIndex:
    """Offsets by the one, two or three tokens before them.

    They are looked up where the output is no mere copy: what is copied waits until then, as many
    tokens at once cost less, and those of an end that is copied nothing.
    """

    def __init__(self, text: GrowingText) -> None:
        """Indexes what is appended to a text from now on."""
        self._text, self._start = text, len(text)
        self._num_heads = _FEWEST_HEADS
        # Those of three tokens are few of those of two, and are found there.
        self._ones, self._twos = _Chains(_FEWEST_HEADS), _Chains(_FEWEST_HEADS)

    def _catch_up(self) -> None:
        """Takes the tokens that were appended since the last time."""
        ids = self._text.ids
        start: i64 = self._start
        end: i64 = len(ids)
        if end - start > self._num_heads:
            while end - start > self._num_heads:
                self._num_heads *= 2
            self._ones, self._twos = _Chains(self._num_heads), _Chains(self._num_heads)
        ones, twos = self._ones, self._twos
        one_heads, two_heads = ones.heads, twos.heads
        ones_before, twos_before = ones.before, twos.before
        mask: i64 = self._num_heads - 1
        offset: i64 = start + len(ones_before)
        while offset < end:
            last = i64(ids[offset])
            head = _hash(last, 0) & mask
            ones_before = append(ones_before, one_heads[head])
            one_heads[head] = i32(offset + 1)
            if offset > start:
                head = _hash(last, i64(ids[offset - 1])) & mask
                twos_before = append(twos_before, two_heads[head])
                two_heads[head] = i32(offset + 1)
            else:
                twos_before = append(twos_before, 0)
            offset += 1
        ones.before, twos.before = ones_before, twos_before

    def find_latest(self, order: int, key: int, most: int) -> list[int]:
        """Returns up to `most` offsets after a context, the latest ones in ascending order.

        The last one may be the end of the text.

        Args:
            order: Tokens of the context, at most MOST_ORDER.
            key: Its `context_key`.
            most: How many to return.
        """
        ids = self._text.ids
        start: i64 = self._start
        if len(self._ones.before) < len(ids) - start:
            self._catch_up()
        chains = self._ones if order == 1 else self._twos
        third = second = i64(0)
        if order == 3:
            third = i64(key & _TOKEN_MASK) - TOKEN_OFFSET
            key >>= TOKEN_BITS
        if order > 1:
            second = i64(key & _TOKEN_MASK) - TOKEN_OFFSET
            key >>= TOKEN_BITS
        last = i64(key) - TOKEN_OFFSET
        before = chains.before
        offset = i64(chains.heads[_hash(last, second) & (self._num_heads - 1)])
        earliest: i64 = start + order
        found: list[int] = []
        while offset >= earliest and len(found) < most:
            if (
                i64(ids[offset - 1]) == last
                and (order == 1 or i64(ids[offset - 2]) == second)
                and (order < 3 or i64(ids[offset - 3]) == third)
            ):
                found.append(int(offset))
            offset = i64(before[offset - 1 - start])
        found.reverse()
        return found

    def count(self, token_id: int, most: int) -> int:
        """Returns how often the output has a token; `most` if it is at least that."""
        return len(self.find_latest(1, token_id + TOKEN_OFFSET, most))


def _hash(last: i64, second: i64) -> i64:
    """Returns a number of two tokens, at least 0, whose low bits differ."""
    number = (last + TOKEN_OFFSET) * 40503 + (second + TOKEN_OFFSET) * 30011
    return number ^ (number >> 15)
