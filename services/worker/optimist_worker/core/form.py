"""How an answer writes JSON: what comes between two values, and how likely a value ends.

A grammar leaves little to choose between values but white space, and an answer chooses it in the
same way throughout. Drafts from a schema: ToolSpec (arXiv 2604.13519).
"""

import json
import re
from collections.abc import Iterator
from copy import copy
from typing import Protocol

FORCED_CHANCE = 0.99
"""That a model splits what is forced into tokens as its tokenizer does."""
KNOWN_CHANCE = 0.97
"""Of what comes between values, where it is all that may come."""
_MORE_CHANCE = 0.6
"""That a container goes on where it may end as well, before it is learned."""
_SAME_CHANCE = 0.5
"""That a key has the value again that it had before, as often as not yet seen."""
_FOLLOWS_PROMPT = 0.7
"""That an answer writes like the JSON in its prompt, before it is learned."""
_DOCUMENT = re.compile(r"[{\[]\s*[{\[\"]")
_MOST_TRIES = 64
"""Places of a prompt at which JSON is looked for."""
_MOST_READ = 2**10
"""Bytes of that JSON that are read."""
_MOST_REMEMBERED = 48
"""Bytes of a value that is remembered."""
_ENDS = {
    b"key": 0.7,
    b"literal": 0.8,
    b"number": 0.35,
    b"letter": 0.3,
    b"digit": 0.2,
    b"stop": 0.2,
    b"mark": 0.02,
}
"""Chance that a value ends by what was written last of it, before it is learned."""
_MOST_LENGTHS = 8
"""Tokens so far by which that is learned apart."""
_PRIOR_WEIGHT = 4.0
"""How many times what is first believed of a chance weighs."""
_GUESS_MEMORY = 0.9
"""What a guess leaves of the weight of those before."""
_MEMORY = 0.98
"""The same of a token of a value, or of a chance that is learned."""
_BEGINNING, _KEY, _VALUE, _NUMBER = b"bkvn"
"""What a text outside strings was last at, beside its punctuation."""


class Chance:
    """A chance that is learned from what came true; the last times weigh most."""

    def __init__(self, first: float, memory: float = _MEMORY) -> None:
        """Starts with what is first believed."""
        self._first, self._memory = first, memory
        self._right = self._seen = 0.0

    def learn(self, *, was_right: bool) -> None:
        """Takes note of whether it came true."""
        self._right = self._memory * self._right + was_right
        self._seen = self._memory * self._seen + 1

    @property
    def value(self) -> float:
        """The chance."""
        return (self._right + _PRIOR_WEIGHT * self._first) / (self._seen + _PRIOR_WEIGHT)


class Style:
    """How an answer writes: white space between values, where they end, what they copy."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._spaces: dict[tuple[int, bool], bytes | None] = {}
        """The white space; None if a line begins."""
        self._indent = b""
        """What each level of lines begins with."""
        self.follows_prompt = Chance(_FOLLOWS_PROMPT, _GUESS_MEMORY)
        """That it is the style of the JSON in the prompt."""
        self.guesses = Chance(1.0, _GUESS_MEMORY)
        """That what is guessed to come between values does."""
        self._chances: dict[tuple[bytes, int], Chance] = {}
        self.end_token_id: int | None = None
        """What the last text ended with."""
        self.literals = [b"true", b"false", b"null"]
        """Those seen last come first."""

    def copy(self) -> "Style":
        """Returns one that goes on to learn by itself."""
        other = copy(self)
        other.guesses, other.follows_prompt = copy(self.guesses), copy(self.follows_prompt)
        other._spaces, other.literals = dict(self._spaces), list(self.literals)
        other._chances = {name: copy(chance) for name, chance in self._chances.items()}
        return other

    def follow(self, other: "Style") -> None:
        """Goes on with another text's white space."""
        self._spaces, self._indent = dict(other._spaces), other._indent

    def is_like(self, other: "Style") -> bool:
        """Whether the white space is another text's, as far as both have it."""
        places = self._spaces.keys() & other._spaces.keys()
        has_lines = any(self._spaces[place] is None for place in places)
        return all(self._spaces[place] == other._spaces[place] for place in places) and (
            self._indent == other._indent or not has_lines
        )

    def chance(self, name: bytes, number: int, first: float) -> Chance:
        """Returns a chance by its name and number, which begins with what is first believed."""
        return self._chances.setdefault((name, number), Chance(first))

    def learn_space(self, before: int, space: bytes, depth: int, *, closes: bool) -> None:
        """Takes note of white space, and of the containers that are open after it."""
        is_line = space.startswith(b"\n")
        self._spaces[before, closes] = None if is_line else space
        if is_line and depth:
            self._indent = space[1 : 1 + (len(space) - 1) // depth]

    def find_space(self, before: int, depth: int, *, closes: bool) -> bytes | None:
        """Returns the white space that is probably written; None if that is not known."""
        key = before, closes
        if key not in self._spaces:
            if before == ord(":"):
                return b" "
            if before in (_BEGINNING, _KEY) or (before == _VALUE and not closes):
                return b""
            # Lines begin after all of them, or after none.
            others = [(each, False) for each in b"{[," if (each, False) in self._spaces]
            if not others:
                return None
            key = others[0]
            if self._spaces[key] is not None and (closes or before != ord(",")):
                return b""
        space = self._spaces[key]
        return b"\n" + self._indent * depth if space is None else space


class Values(Protocol):
    """What follows the strings and numbers of a text that are no keys."""

    def begin(self, *, is_number: bool) -> None:
        """One begins."""

    def write(self, byte: int) -> None:
        """It goes on by a byte."""

    def end(self) -> None:
        """It ends."""

    @property
    def is_copied(self) -> bool:
        """Whether how it ends is learned elsewhere."""


class JsonText:
    """Follows a text that has JSON in it, from its first brace or bracket on."""

    def __init__(self, style: Style, observer: Values) -> None:
        """Begins with nothing written; `style` is what is learned of it."""
        self.style, self._observer = style, observer
        self._open: list[int] = []
        self._before, self._space = _BEGINNING, b""
        self.is_in_string = self._is_key = self._is_escaped = False
        self._num_tokens = self.num_closed = 0
        """Tokens of the value so far; strings that have ended."""
        self._written = b""
        """The beginning of the string or number."""
        self._last = 0
        """Its last byte."""
        self._key = b""
        self._values: dict[bytes, tuple[bytes, int, int]] = {}
        """Strings by their keys: the last one, how many came, how many were the same again."""

    def copy(self) -> "JsonText":
        """Returns one that goes on by itself, of which nothing is learned."""
        other = copy(self)
        other._open = self._open[:]
        return other

    def after(self, text: bytes) -> "JsonText":
        """Returns a copy that has gone on by a text."""
        other = self.copy()
        other.feed(text)
        return other

    @property
    def is_in_value(self) -> bool:
        """Whether a string, perhaps a key, or a number is being written."""
        return self.is_in_string or self._before == _NUMBER

    @property
    def is_in_key(self) -> bool:
        """Whether a key is being written."""
        return self.is_in_string and self._is_key

    @property
    def digit_place(self) -> bytes | None:
        """Where a digit may come next: in a number, after one in a string, as a value's first."""
        if self._before == _NUMBER:
            return b"number"
        if self.is_in_string:
            return b"string" if self._last in b"0123456789" and not self._is_key else None
        return b"value" if self.begins_value else None

    @property
    def begins_value(self) -> bool:
        """Whether what comes next is the first byte of a value that is no literal."""
        if self.is_in_string:
            return not (self._is_key or self._written)
        return self._before == ord(":") or (
            self._before in b"[," and bool(self._open) and self._open[-1] == ord("[")
        )

    def commit(self, token: bytes) -> None:
        """Goes on by a token, and learns the style from it."""
        was_in_value, num_closed = self.is_in_value, self.num_closed
        end = None if self._observer.is_copied else self._end
        for byte in token:
            self._take(byte, learns=True)
        goes_on = was_in_value and self.is_in_value and num_closed == self.num_closed
        if end is not None:
            end.learn(was_right=not goes_on)
        self._num_tokens = self._num_tokens + 1 if goes_on else 0

    def feed(self, text: bytes) -> None:
        """Goes on by a text that may never be written."""
        for byte in text:
            self._take(byte, learns=False)

    def _take(self, byte: int, *, learns: bool) -> None:
        if self.is_in_string:
            self._take_of_string(byte, learns=learns)
        elif byte in b" \t\r\n":
            self._space += bytes([byte])
            if self._before == _NUMBER:
                self._end_number(learns=learns)
        elif self._open or byte in b"{[":
            self._take_of_structure(byte, learns=learns)
        else:
            self._space = b""

    def _take_of_string(self, byte: int, *, learns: bool) -> None:
        if byte == ord('"') and not self._is_escaped:
            self.is_in_string, self._before = False, _KEY if self._is_key else _VALUE
            self.num_closed += 1
            if self._is_key:
                self._key = self._written
            elif learns:
                self._learn_value()
                self._observer.end()
            return
        self._is_escaped = byte == ord("\\") and not self._is_escaped
        self._write(byte, learns=learns and not self._is_key)

    def _write(self, byte: int, *, learns: bool) -> None:
        if len(self._written) <= _MOST_REMEMBERED:
            self._written += bytes([byte])
        self._last = byte
        if learns:
            self._observer.write(byte)

    def _end_number(self, *, learns: bool) -> None:
        self._before = _VALUE
        if not learns:
            return
        self._observer.end()
        if self._written in self.style.literals:
            self.style.literals.remove(self._written)
            self.style.literals.insert(0, self._written)

    def _learn_value(self) -> None:
        last, number, same = self._values.get(self._key, (b"", 0, 0))
        same += last == self._written and number > 0
        self._values[self._key] = self._written, number + 1, same

    def _take_of_structure(self, byte: int, *, learns: bool) -> None:
        if self._before == _NUMBER:
            if byte not in b",:}]":
                self._write(byte, learns=learns)
                return
            self._end_number(learns=learns)
        closes = byte in b"}]"
        if learns:
            self._learn_structure(byte, closes=closes)
        self._space = b""
        if byte == ord('"'):
            self.is_in_string, self._written, self._last = True, b"", 0
            self._is_key = self._open[-1] == ord("{") and self._before in b"{,"
            if learns and not self._is_key:
                self._observer.begin(is_number=False)
        elif byte in b"{[":
            self._open.append(byte)
            self._before = byte
        elif closes:
            self._open.pop()
            self._before = _VALUE if self._open else _BEGINNING
        elif byte in b",:":
            self._before = byte
        else:
            self._before, self._written = _NUMBER, b""
            if learns:
                self._observer.begin(is_number=True)
            self._write(byte, learns=learns)

    def _learn_structure(self, byte: int, *, closes: bool) -> None:
        depth = len(self._open) - closes
        self.style.learn_space(self._before, self._space, depth, closes=closes)
        if self._before == _VALUE and byte in b",]}":
            self._goes_on.learn(was_right=not closes)

    @property
    def _goes_on(self) -> Chance:
        """That the innermost container goes on where it may end as well."""
        return self.style.chance(b"more", self._open[-1], _MORE_CHANCE)

    @property
    def _end(self) -> Chance | None:
        """That the value that is being written ends now; None if it cannot."""
        is_empty = self.is_in_string and not self._num_tokens
        if not self._open or self._is_escaped or not self.is_in_value or is_empty:
            return None
        kind = self._find_kind()
        return self.style.chance(kind, min(self._num_tokens, _MOST_LENGTHS), _ENDS[kind])

    def _find_kind(self) -> bytes:
        """Returns what was written last, a key of `_ENDS`."""
        last = bytes([self._last])
        if self.is_in_key:
            return b"key"
        if last.isdigit():
            return b"digit" if self.is_in_string else b"number"
        if last.isalpha() or last >= b"\x80":
            return b"letter" if self.is_in_string else b"literal"
        return b"stop" if last in b".!?)]}%" else b"mark"

    def find_end_chance(self) -> float:
        """Returns the chance that the value that is being written ends now."""
        end = self._end
        return 0.0 if end is None else end.value

    def end_value(self) -> bytes:
        """Goes on as if the value ended here; returns what is written for that."""
        ending = b'"' if self.is_in_string else b""
        self.feed(ending)
        self._before = _VALUE if self._before == _NUMBER else self._before
        return ending

    def guess_value(self) -> tuple[bytes, float] | None:
        """Returns the string that the key had before, if one is to begin, and its chance."""
        last, number, same = self._values.get(self._key, (b"", 0, 0))
        if self._is_key or self._written or not number or len(last) > _MOST_REMEMBERED:
            return None
        return last + b'"', (same + _SAME_CHANCE) / (number + 1)

    def guess(self) -> Iterator[tuple[bytes, float]]:
        """Iterates over what may come between values: what counts is the first that may.

        With each comes the chance that it is what comes, if it may.
        """
        before, depth = self._before, len(self._open)
        if before in (_VALUE, _NUMBER):
            end = b"}" if self._open[-1] == ord("{") else b"]"
            ways = [(_VALUE, False, b",", self._goes_on.value), (_VALUE, True, end, KNOWN_CHANCE)]
        elif before == _KEY:
            ways = [(_KEY, False, b":", KNOWN_CHANCE)]
        elif before == _BEGINNING:
            ways = [(before, False, start, KNOWN_CHANCE) for start in (b"{", b"[")]
        else:
            ways = [(before, False, start, KNOWN_CHANCE) for start in (b'"', b"{", b"[")]
            ways += [(before, False, literal, _SAME_CHANCE) for literal in self.style.literals]
            ways += [(before, False, b"", _SAME_CHANCE)]
        for kind, closes, mark, chance in ways:
            space = self.style.find_space(kind, depth - closes, closes=closes)
            # Some of it may be there already.
            if space is None or not space.startswith(self._space):
                continue
            if piece := space[len(self._space) :] + mark:
                yield piece, chance


class _Ignored:
    """Values that nobody follows."""

    is_copied = False

    def begin(self, *, is_number: bool) -> None:
        """Does nothing."""

    def write(self, byte: int) -> None:
        """Does nothing."""

    def end(self) -> None:
        """Does nothing."""


def read_style(text: bytes) -> Style | None:
    """Returns how the last JSON in a text is written; None if there is none."""
    document, place = "", 0
    decoder, decoded = json.JSONDecoder(), text.decode(errors="replace")
    for _ in range(_MOST_TRIES):
        if (match := _DOCUMENT.search(decoded, place)) is None:
            break
        try:
            _, place = decoder.raw_decode(decoded, match.start())
        except json.JSONDecodeError as error:
            # What was read up to there is not read again.
            place = max(match.end(), error.pos)
        except (ValueError, RecursionError):
            place = match.end()
        else:
            document = decoded[match.start() : place]
    if not document:
        return None
    style = Style()
    JsonText(style, _Ignored()).commit(document.encode()[:_MOST_READ])
    return style
