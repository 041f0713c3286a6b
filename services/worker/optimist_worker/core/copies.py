"""Values of an answer that are copied from its prompt: how they go on, where they end and begin.

Bytes are compared, as a copy is often split into other tokens than what it copies.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from optimist_worker.core.form import Chance, Style

_MOST_PROMPT = 2**18
"""Bytes of a prompt that are looked at, the last ones."""
_MOST_PLACES = 64
"""Places in the prompt at which a value may be."""
_MOST_WORDS = 8
"""Words by which a copy is written ahead."""
_MOST_STARTS = 8
"""Words after the last copy with which the next value may begin."""
_LEAST_LIKELY = 0.03
"""Chance below which nothing more is written ahead."""

_PART_OF_WORD = rb"[\w\x80-\xff]"
_NOT_WITHIN = rb"(?<!" + _PART_OF_WORD + rb")"
_STARTS = re.compile(_NOT_WITHIN + _PART_OF_WORD)
_WORD = re.compile(rb"[ \t]*(?:" + _PART_OF_WORD + rb"+|[^\w\s\x80-\xff])")
_GOES_ON = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
"""Chance of the next byte of a copy by the bit length of its size so far, before it is learned."""
_ENDS = {b"word": 0.02, b"space": 0.15, b"mark": 0.5, b"line": 0.7}
"""Chance that a copy ends by what follows it in the prompt, before it is learned."""
_BEGINS = 0.1


class Piece(NamedTuple):
    """Bytes of the prompt that a value may go on with."""

    text: bytes
    chance: float
    """That the value goes on with it, after all pieces before."""
    end_chance: float
    """That it goes on with it and ends there."""


class Copies:
    """Follows the values of one answer in its prompt; what is learned is kept in the style."""

    def __init__(self, prompt: bytes, style: Style) -> None:
        """Begins before the first value."""
        self._prompt, self._style = prompt[-_MOST_PROMPT:], style
        self._last = 0
        """Where the copy before ends in the prompt."""
        self._starts = self._find_starts(0)
        """Where words begin after that."""
        self._size = 0
        """Bytes of the value so far."""
        self.places: list[int] = []
        """Where the prompt goes on behind what the value is so far, the likeliest first."""

    def begin(self) -> None:
        """A value begins."""
        self._size, self.places = 0, []

    def write(self, byte: int) -> None:
        """The value goes on by a byte."""
        if not self._size:
            places = self._find(byte)
        else:
            if self.places:
                self._ends(self.places[0]).learn(was_right=False)
                self._goes_on(self._size).learn(was_right=self._has(self.places[0], byte))
            places = (place for place in self.places if self._has(place, byte))
        self.places = [place + 1 for place in places]
        self._size += 1

    def end(self) -> None:
        """The value ends."""
        begin = -1
        if self.places:
            self._ends(self.places[0]).learn(was_right=True)
            begin = self.places[0] - self._size
        for rank, start in enumerate(self._starts):
            self._begins(rank).learn(was_right=start == begin)
        if self.places:
            self._last = self.places[0]
            self._starts = self._find_starts(self._last)
        self.places = []

    def starts(self, last: int | None = None) -> Iterator[tuple[int, float]]:
        """Iterates over where the next value may begin in the prompt, each with its chance.

        `last` is where a copy before it ends, if the one that is there already is not the last.
        """
        starts = self._starts if last is None else self._find_starts(last)
        for rank, start in enumerate(starts):
            yield start, self._begins(rank).value

    def go_on(self, place: int, chance: float, *, begins: bool = False) -> list[Piece]:
        """Returns how the value goes on, word by word, if it is at a place with a chance.

        `begins`: the value is still to begin there, with its first byte.
        """
        pieces: list[Piece] = []
        size = 0 if begins else self._size
        for word in islice(self._words(place), _MOST_WORDS):
            for _ in word:
                chance *= self._goes_on(size).value if size else 1
                size += 1
            place += len(word)
            ends = self._ends(place).value
            pieces.append(Piece(word, chance, chance * ends))
            chance *= 1 - ends
            if chance < _LEAST_LIKELY:
                break
        return pieces

    def _words(self, place: int) -> Iterator[bytes]:
        while (match := _WORD.match(self._prompt, place)) is not None:
            place = match.end()
            yield match[0]

    def _find(self, byte: int) -> Iterator[int]:
        """Iterates over the places of a byte, not within words, from the last copy on."""
        one = re.escape(bytes([byte]))
        is_part = re.match(_PART_OF_WORD, bytes([byte])) is not None
        pattern = re.compile(_NOT_WITHIN + one if is_part else one)
        after = (match.start() for match in pattern.finditer(self._prompt, self._last))
        before = (match.start() for match in pattern.finditer(self._prompt, 0, self._last))
        return islice((place for places in (after, before) for place in places), _MOST_PLACES)

    def _find_starts(self, last: int) -> list[int]:
        found = _STARTS.finditer(self._prompt, last)
        return [match.start() for match in islice(found, _MOST_STARTS)]

    def _has(self, place: int, byte: int) -> bool:
        return place < len(self._prompt) and self._prompt[place] == byte

    def _goes_on(self, size: int) -> Chance:
        bits = min(size.bit_length(), len(_GOES_ON)) - 1
        return self._style.chance(b"goes on", bits, _GOES_ON[bits])

    def _begins(self, rank: int) -> Chance:
        return self._style.chance(b"begins", rank, _BEGINS)

    def _ends(self, place: int) -> Chance:
        """Returns how likely copies end before such a place."""
        around = self._prompt[max(place - 1, 0) : place + 1]
        if len(around) < 2 or around[1:] in b"\r\n":
            kind = b"line"
        elif re.fullmatch(_PART_OF_WORD + rb"{2}", around):
            kind = b"word"
        else:
            kind = b"space" if around[1:].isspace() else b"mark"
        return self._style.chance(kind, 0, _ENDS[kind])
