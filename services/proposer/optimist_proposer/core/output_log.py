"""An output as a log relative to its sources, to which every step appends some bytes.

The log is a sequence of runs. Each is a number, twice its length plus one if it was copied; then,
for a copied run, how far its place in the sources is ahead of its place in the output (zigzag), and
for another its tokens. All numbers are varints. No run refers to one before it, so that whoever
knows the number of tokens can append, whatever the runs before were.
"""

from array import array

from optimist_aligner.text.sources import INT32, Sources
from optimist_proposer.core.copy_search import CopySearch
from optimist_proposer.core.varint import put_varint, read_varints, unzigzag, zigzag


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
    search = CopySearch(sources.token_ids, hint)
    position = 0
    while position < len(token_ids):
        place, length = search.find(token_ids, position, len(literals))
        if not length:
            literals.append(token_ids[position])
            position += 1
            continue
        _put_literals(data, literals)
        put_varint(data, 2 * length + 1)
        put_varint(data, zigzag(place - start - position))
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
