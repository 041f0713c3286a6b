"""An output as a log relative to its sources, to which every step appends some bytes.

The log is a sequence of runs. Each is a number, twice its length plus one if it was copied; then,
for a copied run, how far its place in the sources is ahead of its place in the output (zigzag), and
for another its tokens. All numbers are varints. No run refers to one before it, so that whoever
knows the number of tokens can append, whatever the runs before were.
"""

from array import array
from collections.abc import Sequence

from optimist_proposer.core.lines import INT32
from optimist_proposer.core.sources import Sources
from optimist_proposer.core.varint import put_varint, read_varints, unzigzag, zigzag

# A shorter run takes hardly less room than its tokens, and is found by chance more often.
_MIN_RUN = 3
# Tokens that are looked up together, and how far around the expected place.
_NEEDLE_TOKENS = 6
_TOKENS_BEFORE = 1024
_TOKENS_BEHIND = 3072


def encode_output(
    sources: Sources, start: int, token_ids: "array[int]", hint: int
) -> tuple[bytes, int]:
    """Encodes output tokens as runs to append.

    Args:
        sources: The request's sources.
        start: Output position of the first token.
        token_ids: The tokens, each at least 0 [num_tokens].
        hint: Place in the sources where a copy is expected to go on; saves bytes, no more.

    Returns:
        The runs, and the hint for what comes behind.
    """
    data, literals = bytearray(), array(INT32)
    position = 0
    while position < len(token_ids):
        # After an insertion the copy goes on where it ended, after a replacement so much farther.
        expected = (hint, hint + len(literals)) if literals else (hint,)
        place, length = _find_run(sources.token_ids, token_ids, position, expected)
        if not length:
            literals.append(token_ids[position])
            position += 1
            continue
        _put_literals(data, literals)
        put_varint(data, 2 * length + 1)
        put_varint(data, zigzag(place - start - position))
        position += length
        hint = place + length
    _put_literals(data, literals)
    return bytes(data), hint


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
                raise ValueError("a copied run has no place")
            place = start + len(token_ids) + unzigzag(delta)
            if not 0 <= place <= len(sources.token_ids) - length:
                raise ValueError("a copied run lies outside the sources")
            token_ids.extend(sources.token_ids[place : place + length])
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


def _find_run(
    source: "array[int]", token_ids: "array[int]", position: int, expected: Sequence[int]
) -> tuple[int, int]:
    """Returns where in the sources the tokens from `position` on are, and how many; (0, 0) if not.

    Args:
        source: The sources.
        token_ids: Output tokens.
        position: The first to find.
        expected: Places to try first; other places are looked for around the first of these.
    """
    shortest = min(_MIN_RUN, len(token_ids) - position)
    for place in expected:
        length = _run_length(source, place, token_ids, position)
        if length >= shortest:
            return place, length
    needle = token_ids[position : position + _NEEDLE_TOKENS]
    if len(needle) < _MIN_RUN:
        return 0, 0
    hint = min(max(expected[0], 0), len(source))
    first = max(hint - _TOKENS_BEFORE, 0)
    nearby = source[first : hint + _TOKENS_BEHIND].tobytes()
    size = source.itemsize
    # Rather behind the expected place: output seldom goes back.
    found = _find_aligned(nearby, needle.tobytes(), (hint - first) * size, size)
    if found < 0:
        found = _find_aligned(nearby, needle.tobytes(), 0, size)
    if found < 0:
        return 0, 0
    place = first + found // size
    return place, _run_length(source, place, token_ids, position)


def _find_aligned(data: bytes, needle: bytes, start: int, size: int) -> int:
    found = data.find(needle, start)
    while found >= 0 and found % size:
        found = data.find(needle, found + 1)
    return found


def _run_length(source: "array[int]", place: int, token_ids: "array[int]", position: int) -> int:
    if not 0 <= place < len(source):
        return 0
    limit = min(len(source) - place, len(token_ids) - position)
    if source[place : place + limit] == token_ids[position : position + limit]:
        return limit
    length = 0
    while source[place + length] == token_ids[position + length]:
        length += 1
    return length
