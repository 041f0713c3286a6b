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
"""Words, or numbers, after the last copy with which the next value may begin."""
_LEAST_LIKELY = 0.03
"""Chance below which nothing more is written ahead."""

_PART_OF_WORD = rb"[\w\x80-\xff]"
_NOT_WITHIN = rb"(?<!" + _PART_OF_WORD + rb")"
_NOT_JOINED = rb"(?<!" + _PART_OF_WORD + rb"[.@/:_'-])" + _NOT_WITHIN
_STARTS = re.compile(
    # Small words begin values after a mark or a line break only.
    _NOT_JOINED + rb"(?:[A-Z0-9\x80-\xff]|(?:(?<=[^\w\s] )|(?<=[^\w ])|^)\w)"
)
_NUMBER_STARTS = re.compile(_NOT_JOINED + rb"[0-9]")
_WORD = re.compile(rb"[ \t]*(?:" + _PART_OF_WORD + rb"+|[^\w\s\x80-\xff])")
_WRAP = re.compile(rb"(?<=[^\n]{60})\n(?=\w)")
"""Where a long line goes on in the next one, which a value copies as a space."""
_GOES_ON = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
"""Chance of the next byte of a copy by the bit length of its size so far, before it is learned."""
_BEGINS, _NUMBER_BEGINS = 0.2, 0.4
"""Chance that a value begins with the next word or number, before it is learned."""
_LINE, _SPACE, _MARK, _DIGIT, _UPPER, _LOWER = b"\n", b" ", b".", b"0", b"A", b"a"
_OF_WORDS = _DIGIT + _UPPER + _LOWER


class Piece(NamedTuple):
    """Bytes of the prompt that a value may go on with."""

    text: bytes
    chance: float
    """That the value goes on with it, after all pieces before."""
    end_chance: float
    """That it goes on with it and ends there."""


class Copies:
    """Follows the values of one answer in its prompt; what is learned is kept in the style."""

    def __init__(self, prompt: bytes, style: Style, size: int | None = None) -> None:
        """Begins before the first value, which probably is in the last `size` bytes."""
        self._prompt, self._style = _WRAP.sub(b" ", prompt[-_MOST_PROMPT:]), style
        self._last = 0 if size is None else max(0, len(self._prompt) - size)
        """Where the copy before ends in the prompt."""
        self._size = 0
        """Bytes of the value so far."""
        self._is_number = False
        self.places: list[int] = []
        """Where the prompt goes on behind what the value is so far, the likeliest first."""

    def begin(self, *, is_number: bool) -> None:
        """A value begins."""
        self._size, self.places, self._is_number = 0, [], is_number

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
        for start, chance in self._find_starts(self._last, is_number=self._is_number):
            chance.learn(was_right=start == begin)
        if self.places:
            self._last = self.places[0]
        self.places = []

    @property
    def is_copied(self) -> bool:
        """Whether all of the value so far is in the prompt."""
        return bool(self.places)

    @property
    def end_chance(self) -> float:
        """The chance that the value, which is copied, ends where it is."""
        return self._ends(self.places[0]).value

    def starts(self, last: int | None, *, is_number: bool) -> Iterator[tuple[int, float]]:
        """Iterates over where the next value may begin in the prompt, each with its chance.

        `last` is where a copy before it ends, if the one that is there already is not the last.
        """
        last = self._last if last is None else last
        for start, chance in self._find_starts(last, is_number=is_number):
            yield start, chance.value

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

    def _find_starts(self, last: int, *, is_number: bool) -> Iterator[tuple[int, Chance]]:
        found = (_NUMBER_STARTS if is_number else _STARTS).finditer(self._prompt, last)
        for rank, match in enumerate(islice(found, _MOST_STARTS)):
            name = b"number" if is_number else self._kind(match.start())
            first = _NUMBER_BEGINS if is_number else _BEGINS
            yield match.start(), self._style.chance(b"begins " + name, rank, first / (1 + rank))

    def _has(self, place: int, byte: int) -> bool:
        return place < len(self._prompt) and self._prompt[place] == byte

    def _goes_on(self, size: int) -> Chance:
        bits = min(size.bit_length(), len(_GOES_ON)) - 1
        return self._style.chance(b"goes on", bits, _GOES_ON[bits])

    def _ends(self, place: int) -> Chance:
        """Returns how likely copies end before such a place."""
        before, at, after = (self._kind(place + step) for step in (-1, 0, 1))
        if before in _OF_WORDS and at in _OF_WORDS:
            name, first = b"within", 0.02
        elif before in _OF_WORDS and at == _SPACE:
            # "North Quay in Leeds": names go on with capitals, and words with small ones.
            word = self._kind(self._prompt.rfind(b" ", 0, place) + 1)
            name, first = word + b" " + after, 0.2 if word == after else 0.5
        elif at == _MARK:
            name, first = before + b"." + after, 0.05 if after in _OF_WORDS else 0.8
        else:
            name, first = before + at, 0.6 if at == _LINE else 0.1
        return self._style.chance(b"ends " + name, 0, first)

    def _kind(self, place: int) -> bytes:
        byte = self._prompt[place : place + 1] if place >= 0 else b""
        if not byte or byte in b"\r\n":
            return _LINE
        if byte.isspace():
            return _SPACE
        if byte.isdigit():
            return _DIGIT
        if byte.isupper():
            return _UPPER
        return _LOWER if byte.islower() or byte == b"_" or byte >= b"\x80" else _MARK
