"""An output as a log relative to its sources, to which every step appends some bytes.

The log is a sequence of runs. Each is a number, twice its length plus one if it was copied; then,
for a copied run, how far its index in the sources is ahead of its position in the output (zigzag),
and for another its tokens. All numbers are varints. No run refers to one before it, so that whoever
knows the number of tokens can append, whatever the runs before were.
"""

from array import array

from optimist_aligner.text.sources import INT32, Sources

# A shorter copy takes hardly less room than its tokens, and is found by chance more often.
_MIN_TOKENS = 3
# Tokens that are looked up together, and how far around the expected index.
_NEEDLE_TOKENS = 6
_TOKENS_BEFORE = 1024
_TOKENS_AFTER = 3072
MAX_BYTES = 5
"""Enough for any token, position or count."""


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


def decode_output(sources: Sources, start: int, data: bytes) -> "array[int]":
    """Returns the output tokens that runs stand for [num_tokens].

    Args:
        sources: The request's sources.
        start: Output position of the first token.
        data: Runs, all those from that token on.

    Raises:
        ValueError: They are no runs over these sources.
    """
    token_ids = array(INT32)
    numbers = iter(read_varints(data))
    for header in numbers:
        length = header // 2
        if header % 2:
            delta = next(numbers, None)
            if delta is None:
                raise ValueError("a copied run has no index")
            index = start + len(token_ids) + unzigzag(delta)
            if not 0 <= index <= len(sources.token_ids) - length:
                raise ValueError("a copied run lies outside the sources")
            token_ids.extend(sources.token_ids[index : index + length])
            continue
        for _ in range(length):
            token_id = next(numbers, None)
            if token_id is None or token_id > 0x7FFFFFFF:
                raise ValueError("a run lacks tokens")
            token_ids.append(token_id)
    return token_ids


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


def read_varints(data: bytes) -> list[int]:
    """Returns the numbers that `data` holds; raises ValueError if it ends within one."""
    values: list[int] = []
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            values.append(value)
            value = shift = 0
            continue
        shift += 7
        if shift >= 7 * MAX_BYTES:
            raise ValueError("a number has too many bytes")
    if shift:
        raise ValueError("the data ends within a number")
    return values


def zigzag(value: int) -> int:
    """Maps whole numbers to those of at least 0, near 0 to small ones."""
    return 2 * value if value >= 0 else -2 * value - 1


def unzigzag(value: int) -> int:
    """Undoes `zigzag`."""
    return value // 2 if value % 2 == 0 else -(value + 1) // 2
