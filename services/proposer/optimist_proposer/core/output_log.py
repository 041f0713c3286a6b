"""An output as a log relative to its sources, to which every step appends some bytes.

The log is a sequence of runs. Each is a number, twice its length plus one if it was copied; then,
for a copied run, how far its index in the sources is ahead of its position in the output (zigzag),
and for another its tokens. All numbers are varints. No run refers to one before it, so that whoever
knows the number of tokens can append, whatever the runs before were.
"""

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from optimist_aligner.text.sources import INT32, Sources
from optimist_proposer.core.wrong_value import WrongKind, WrongValueError

# A shorter copy takes hardly less room than its tokens, and is found by chance more often.
_MIN_TOKENS = 3
# Tokens that are looked up together, and how far around the expected index.
_NEEDLE_TOKENS = 6
_TOKENS_BEFORE = 1024
_TOKENS_AFTER = 3072
_MAX_INT32 = 0x7FFFFFFF
_RUNS_OF_A_PIECE = 2048
MAX_BYTES = 5
"""Enough for any token, position or count."""
MAX_BYTES_PER_TOKEN = MAX_BYTES + 1
"""No log is longer: a token that is a run of its own has a length of one byte before it."""


def encode_output(
    sources: Sources, start: int, token_ids: "array[int]", hint: int
) -> tuple[bytes, int]:
    """Encodes output tokens as runs to append.

    Args:
        sources: The request's sources.
        start: Output position of the first token.
        token_ids: The tokens, each at least 0 [num_tokens].
        hint: Index in the sources where a copy is expected to go on; saves bytes, no more.

    Returns:
        The runs, and the hint for what comes after.
    """
    data, literals = bytearray(), array(INT32)
    search = CopySearch(sources.token_ids, hint)
    position = 0
    while position < len(token_ids):
        index, length = search.find(token_ids, position, len(literals))
        if not length:
            literals.append(token_ids[position])
            position += 1
            continue
        _put_literals(data, literals)
        put_varint(data, 2 * length + 1)
        put_varint(data, zigzag(index - start - position))
        position += length
    _put_literals(data, literals)
    return bytes(data), search.hint


def decode_output(
    sources: Sources, start: int, data: bytes, num_tokens: int
) -> Iterator["array[int]"]:
    """Yields the output tokens that runs stand for, in pieces that take some ms.

    Nothing is trusted: no run is expanded beyond the tokens that are expected. Copied tokens may
    be separators of the sources, and others in no vocabulary.

    Args:
        sources: The request's sources.
        start: Output position of the first token.
        data: Runs, all those from that token on.
        num_tokens: How many tokens they are to stand for, all pieces together.

    Raises:
        WrongValueError: They are no runs over these sources, or stand for more or fewer tokens.
    """
    numbers = read_varints(data)
    if len(numbers) > 2 * max(num_tokens, 0):
        raise _wrong_size(f"{len(numbers)} numbers are no runs of {num_tokens} tokens")
    heads, at, num_left = numbers.tolist(), 0, num_tokens
    piece, end = array(INT32), 2 * _RUNS_OF_A_PIECE
    while at < len(heads):
        length, is_copied = heads[at] >> 1, heads[at] & 1
        if not 0 < length <= num_left:
            raise _wrong_size(f"a run has {length} tokens, of {num_left} that are left")
        if is_copied:
            piece.extend(
                _copied(sources, start + num_tokens - num_left, heads[at + 1 : at + 2], length)
            )
            at += 2
        else:
            piece.frombytes(_literals(numbers[at + 1 : at + 1 + length], length))
            at += 1 + length
        num_left -= length
        if at >= end:
            yield piece
            piece, end = array(INT32), at + 2 * _RUNS_OF_A_PIECE
    if num_left:
        raise _wrong_size(f"runs stand for {num_tokens - num_left} tokens, not for {num_tokens}")
    yield piece


def _copied(sources: Sources, position: int, deltas: list[int], length: int) -> "array[int]":
    if not deltas:
        raise _no_runs("a copied run has no index")
    index = position + unzigzag(deltas[0])
    if not 0 <= index <= len(sources.token_ids) - length:
        raise _no_runs("a copied run lies outside the sources")
    return sources.token_ids[index : index + length]


def _literals(token_ids: "NDArray[np.int64]", length: int) -> bytes:
    if len(token_ids) < length or token_ids.max() > _MAX_INT32:
        raise _no_runs("a run lacks tokens")
    return token_ids.astype(np.intc).tobytes()


def _wrong_size(message: str) -> WrongValueError:
    return WrongValueError(WrongKind.SIZE, message)


def _no_runs(message: str) -> WrongValueError:
    return WrongValueError(WrongKind.FORMAT, message)


def _put_literals(data: bytearray, literals: "array[int]") -> None:
    if literals:
        put_varint(data, 2 * len(literals))
        for token_id in literals:
            put_varint(data, token_id)
        del literals[:]


class CopySearch:
    """Expects a copy where the last one ended."""

    def __init__(self, source: "array[int]", hint: int) -> None:
        """Takes the tokens to copy from [num_tokens], and where a copy is expected."""
        self._source = source
        self.hint = hint
        """Index after the last copy."""
        self._first = 0
        self._nearby: bytes | None = None

    def find(self, token_ids: "array[int]", position: int, num_skipped: int) -> tuple[int, int]:
        """Looks for the output tokens from a position on; notes where they end if they are there.

        Args:
            token_ids: Output tokens [num_tokens].
            position: The first to find.
            num_skipped: Tokens before it that are no copy.

        Returns:
            The index of the first, and how many are copied from there on; 0 if none.
        """
        shortest = min(_MIN_TOKENS, len(token_ids) - position)
        # After an insertion it goes on where it ended, after a replacement so much farther.
        for index in (self.hint, self.hint + num_skipped):
            length = self._length(index, token_ids, position)
            if length >= shortest:
                return self._note(index, length)
        needle = token_ids[position : position + _NEEDLE_TOKENS]
        if len(needle) < _MIN_TOKENS:
            return 0, 0
        index = self._search(needle)
        return self._note(index, self._length(index, token_ids, position)) if index >= 0 else (0, 0)

    def _note(self, index: int, length: int) -> tuple[int, int]:
        self.hint, self._nearby = index + length, None
        return index, length

    def _search(self, needle: "array[int]") -> int:
        """Returns an index near the hint at which the tokens are; -1 if there is none."""
        size = self._source.itemsize
        hint = min(max(self.hint, 0), len(self._source))
        if self._nearby is None:
            self._first = max(hint - _TOKENS_BEFORE, 0)
            self._nearby = self._source[self._first : hint + _TOKENS_AFTER].tobytes()
        # Rather after than before: output seldom goes back.
        for start in ((hint - self._first) * size, 0):
            found = self._nearby.find(needle.tobytes(), start)
            while found >= 0 and found % size:
                found = self._nearby.find(needle.tobytes(), found + 1)
            if found >= 0:
                return self._first + found // size
        return -1

    def _length(self, index: int, token_ids: "array[int]", position: int) -> int:
        """Returns how many tokens from a position on are equal to those from an index on."""
        source = self._source
        if not 0 <= index < len(source) or source[index] != token_ids[position]:
            return 0
        limit = min(len(source) - index, len(token_ids) - position)
        if source[index : index + limit] == token_ids[position : position + limit]:
            return limit
        length = 1
        while source[index + length] == token_ids[position + length]:
            length += 1
        return length


def put_varint(data: bytearray, value: int) -> None:
    """Appends a number of at least 0."""
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)


def read_varints(data: bytes) -> "NDArray[np.int64]":
    """Returns the numbers that `data` holds; raises WrongValueError if they are none."""
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 0x80)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    if len(octets) > (ends[-1] + 1 if len(ends) else 0):
        raise _no_runs("the data ends within a number")
    lengths = ends - starts + 1
    if lengths.max(initial=0) > MAX_BYTES:
        raise _no_runs("a number has too many bytes")
    values = np.zeros(len(ends), np.int64)
    for place in range(MAX_BYTES):
        has_more = lengths > place
        octet = octets[starts[has_more] + place] & 0x7F
        values[has_more] |= octet.astype(np.int64) << (7 * place)
    return values


def zigzag(value: int) -> int:
    """Maps whole numbers to those of at least 0, near 0 to small ones."""
    return 2 * value if value >= 0 else -2 * value - 1


def unzigzag(value: int) -> int:
    """Undoes `zigzag`."""
    return value // 2 if value % 2 == 0 else -(value + 1) // 2
