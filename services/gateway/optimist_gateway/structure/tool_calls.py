"""Reads what a message is made of out of an answer's text as it arrives."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from optimist_gateway.core.answer.detokenize import overlap
from optimist_gateway.core.answer.thinking import SPACES, ThinkingReader
from optimist_gateway.structure.grammars import MAX_PART_SPACE
from optimist_gateway.structure.tool_format import ToolFormat

MAX_NAME_CHARACTERS = 258
"""A name, of at most 128, behind that of a namespace."""
_SPACE = rf"[ \n\r\t]{{0,{MAX_PART_SPACE}}}"
_NAME = rf"([A-Za-z0-9_.:/-]{{1,{MAX_NAME_CHARACTERS}}})"


@dataclass(frozen=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class ContentDelta:
    """More text of the message."""

    text: str


@dataclass(frozen=True)
class CallDelta:
    """A new call, or more of its arguments."""

    index: int
    """Number of the call in the message, from 0."""
    name: str | None
    """Of the function, if the call is new."""
    arguments: str
    """More of the text of its arguments, which are a JSON object."""


Delta = ContentDelta | CallDelta
AnyDelta = ReasoningDelta | Delta


class MessageReader:
    """Separates thoughts, text and calls; calls come after thoughts."""

    def __init__(self, thinking: ThinkingReader | None, calls: "ToolCallReader | None") -> None:
        """Starts before the first piece; None for what there is not."""
        self._thinking, self._calls = thinking, calls

    @property
    def num_calls(self) -> int:
        """Calls begun so far."""
        return self._calls.num_calls if self._calls is not None else 0

    @property
    def is_plain(self) -> bool:
        """Whether all text that comes now is content."""
        return self._calls is None and (self._thinking is None or self._thinking.has_ended)

    def push(self, text: str, *, is_last: bool) -> list[AnyDelta]:
        """Adds a piece of text; returns what is certain now, or all that is left with the last."""
        deltas: list[AnyDelta] = []
        if self._thinking is not None:
            thought, text = self._thinking.push(text, is_last=is_last)
            deltas += [ReasoningDelta(thought)] if thought else []
        if self._calls is None:
            return [*deltas, *([ContentDelta(text)] if text else [])]
        deltas += self._calls.push(text)
        return [*deltas, *(self._calls.finish() if is_last else [])]


class ToolCallReader:
    """Separates calls from text.

    However the text is cut into pieces, the deltas join to the same message. Text that only begins
    like a call is content, and a call may follow it. White space before the first call is no
    content. Arguments are handed on as they are written; nothing is evaluated.
    """

    def __init__(self, form: ToolFormat, names: Collection[str]) -> None:
        """Starts before the first piece; calls of functions of other names are text."""
        self.num_calls = 0
        """Calls begun so far."""
        self._form = form
        self._names = frozenset(names)
        self._buffer = ""
        self._spaces = ""
        """White space at the end of the text so far, which is dropped if a call follows."""
        self._scan = _ObjectScan()
        self._first = _Beginning(form, form.opening + form.before_name)
        self._next = _Beginning(form, (form.separator or ()) + form.before_name)
        self._closing = _SPACE + _pattern(form.closing)
        self._deltas: list[Delta] = []
        self._read: Callable[[], bool] = self._text if form.follows_text else self._first_call

    def push(self, text: str) -> list[Delta]:
        """Adds a piece of text; returns what is certain now."""
        self._buffer += text
        while self._buffer and self._read():
            pass
        return self._taken()

    def finish(self) -> list[Delta]:
        """Returns what was held back, as no more text will come.

        Of a call that breaks off before its arguments, only the text of a first one is returned.
        """
        if self.num_calls == 0:
            self._add_content(self._buffer)
            if self._spaces:
                self._deltas.append(ContentDelta(self._spaces))
            self._spaces = ""
        self._buffer = ""
        return self._taken()

    def _taken(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def _text(self) -> bool:
        """Reads text up to the first marker; like its fellows, returns whether to go on."""
        marker = self._form.marker
        start = self._buffer.find(marker)
        is_found = start >= 0
        if not is_found:
            start = len(self._buffer) - overlap(self._buffer, marker)
        self._add_content(self._buffer[:start])
        self._buffer = self._buffer[start:]
        if is_found:
            self._read = self._first_call
        return is_found

    def _first_call(self) -> bool:
        return self._begin(self._first, self._no_call if self._form.follows_text else self._rest)

    def _no_call(self) -> bool:
        """Reads a marker that begins no call; the next one may."""
        marker = self._form.marker
        self._add_content(marker)
        self._buffer = self._buffer[len(marker) :]
        self._read = self._text
        return True

    def _next_call(self) -> bool:
        if self._form.closing:
            match = re.match(self._closing, self._buffer)
            if match is not None:
                self._buffer = self._buffer[match.end() :]
                self._read = self._rest
                return True
            if _behind(self._form.closing, self._buffer) is not None:
                return False
        if self._form.separator is None:
            self._read = self._rest
            return True
        return self._begin(self._next, self._rest)

    def _begin(self, beginning: "_Beginning", otherwise: Callable[[], bool]) -> bool:
        match = beginning.match(self._buffer)
        if match is not None and match[1] in self._names:
            self._spaces = ""
            self._deltas.append(CallDelta(self.num_calls, match[1], ""))
            self.num_calls += 1
            self._buffer = self._buffer[match.end() :]
            self._scan = _ObjectScan()
            self._read = self._arguments
            return True
        if match is None and beginning.may_match(self._buffer):
            return False
        self._read = otherwise
        return True

    def _arguments(self) -> bool:
        if not self._scan.has_begun:
            self._buffer = self._buffer.lstrip(SPACES)
        if not self._buffer:
            return False
        end = self._scan.push(self._buffer)
        if self._buffer[:end]:
            self._deltas.append(CallDelta(self.num_calls - 1, None, self._buffer[:end]))
        self._buffer = self._buffer[end:]
        if self._scan.has_ended:
            self._read = self._end if self._form.end else self._next_call
        return self._scan.has_ended

    def _end(self) -> bool:
        match = re.match(_SPACE + _pattern(self._form.end), self._buffer)
        if match is not None:
            self._buffer = self._buffer[match.end() :]
            self._read = self._next_call
            return True
        if len(self._buffer) < _longest(self._form.end):
            return False
        self._read = self._rest
        return True

    def _rest(self) -> bool:
        """Reads what is no call any more."""
        self._add_content(self._buffer)
        self._buffer = ""
        return False

    def _add_content(self, text: str) -> None:
        shown = text.rstrip(SPACES)
        if shown:
            self._deltas.append(ContentDelta(self._spaces + shown))
            self._spaces = ""
        self._spaces += text[len(shown) :]


class _Beginning:
    """Parts up to the arguments of a call."""

    def __init__(self, form: ToolFormat, before_name: tuple[str, ...]) -> None:
        before, after = _pattern(before_name), _pattern(form.after_name)
        name = f"{_SPACE}{form.quote}{_NAME}{form.quote}{_SPACE}"
        self._pattern = re.compile(_SPACE + before + name + after)
        self._before_name = (*before_name, form.quote)
        self._quote = form.quote
        self._after_name = form.after_name

    def match(self, text: str) -> re.Match[str] | None:
        """Returns the match at the beginning of a text; its first group is the name."""
        return self._pattern.match(text)

    def may_match(self, text: str) -> bool:
        """Returns whether a text without a match may have one when there is more of it."""
        rest = _behind(self._before_name, text)
        name = re.match(_NAME, rest or "")
        if rest is None or name is None:
            return rest == ""
        rest = rest[name.end() :]
        if not rest.startswith(self._quote):
            return rest == ""
        return _behind(self._after_name, rest.removeprefix(self._quote)) is not None


class _ObjectScan:
    """Finds the end of a JSON object."""

    _TOKEN = re.compile(r'["\\{}\[\]]')

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = False
        self._is_escaped = False
        self.has_begun = False
        self.has_ended = False

    def push(self, text: str) -> int:
        """Reads on; returns up to where the text belongs to the object."""
        self.has_begun = True
        position = 0
        while match := self._TOKEN.search(text, position + self._is_escaped):
            self._is_escaped = False
            position = match.end()
            self._read(match[0])
            if self._is_escaped and position == len(text):
                return position
            if self._depth == 0 and not self._in_text:
                self.has_ended = True
                return position
        self._is_escaped = self._is_escaped and position >= len(text)
        return len(text)

    def _read(self, char: str) -> None:
        if char == '"':
            self._in_text = not self._in_text
        elif self._in_text:
            self._is_escaped = char == "\\"
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1


def _pattern(parts: tuple[str, ...]) -> str:
    return _SPACE.join(re.escape(part) for part in parts)


def _longest(parts: tuple[str, ...]) -> int:
    """Returns the most characters that parts take, white space before each counted."""
    return sum(len(part) + MAX_PART_SPACE for part in parts)


def _behind(parts: tuple[str, ...], text: str) -> str | None:
    """Returns what follows parts in a text that begins with them.

    Nothing follows if the text ends before they do; None: it begins with something else.
    """
    for part in parts:
        text = re.sub(rf"^{_SPACE}", "", text)
        if not text.startswith(part):
            return "" if part.startswith(text) else None
        text = text.removeprefix(part)
    return text
