"""Reads what a message is made of out of an answer's text as it arrives."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from optimist_gateway.core.answer.detokenize import find_marker
from optimist_gateway.core.answer.thinking import SPACES, ThinkingReader
from optimist_gateway.structure.thinking_grammar import MAX_PART_SPACE, SPACE
from optimist_gateway.structure.tool_format import ToolFormat

MAX_NAME_CHARACTERS = 258
"""A name, of at most 128, behind that of a namespace."""
_SPACE = f"{SPACE}{{0,{MAX_PART_SPACE}}}"
_NAME = rf"(?P<name>[A-Za-z0-9_.:/-]{{1,{MAX_NAME_CHARACTERS}}})"
_NEVER = re.compile("(?!)")


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
        self._first = _beginning(form, *form.opening, *form.before_name)
        self._next = _NEVER
        if form.separator is not None:
            self._next = _beginning(form, *form.separator, *form.before_name)
        self._end = _expected(*_parts(*form.end))
        self._closing = _expected(*_parts(*form.closing)) if form.closing else _NEVER
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
        start, is_found = find_marker(self._buffer, self._form.marker)
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

    def _begin(self, beginning: re.Pattern[str], otherwise: Callable[[], bool]) -> bool:
        match = beginning.match(self._buffer)
        if match is not None and match["whole"] is None:
            return False
        if match is None or match["name"] not in self._names:
            self._read = otherwise
            return True
        self._spaces = ""
        self._deltas.append(CallDelta(self.num_calls, match["name"], ""))
        self.num_calls += 1
        self._buffer = self._buffer[match.end() :]
        self._scan = _ObjectScan()
        self._read = self._arguments
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
            self._read = self._call_end
        return self._scan.has_ended

    def _call_end(self) -> bool:
        return self._skip(self._end, self._list_end, self._rest)

    def _list_end(self) -> bool:
        return self._skip(self._closing, self._rest, self._next_call)

    def _next_call(self) -> bool:
        return self._begin(self._next, self._rest)

    def _skip(
        self, expected: re.Pattern[str], then: Callable[[], bool], otherwise: Callable[[], bool]
    ) -> bool:
        match = expected.match(self._buffer)
        if match is not None and match["whole"] is None:
            return False
        self._buffer = self._buffer[match.end() if match is not None else 0 :]
        self._read = otherwise if match is None else then
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


class _ObjectScan:
    """Finds the end of a JSON object."""

    _TOKEN = re.compile(r'["\\{}\[\]]')

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = False
        self._escaped = -1
        """Where the last escaped character is in the piece that comes now, if it is in there."""
        self.has_begun = False
        self.has_ended = False

    def push(self, text: str) -> int:
        """Reads on; returns up to where the text belongs to the object."""
        self.has_begun = True
        for match in self._TOKEN.finditer(text):
            if match.start() == self._escaped:
                continue
            if match[0] == '"':
                self._in_text = not self._in_text
            elif self._in_text:
                self._escaped = match.end() if match[0] == "\\" else self._escaped
            elif match[0] != "\\":
                self._depth += 1 if match[0] in "{[" else -1
            if self._depth == 0 and not self._in_text:
                self.has_ended = True
                return match.end()
        self._escaped -= len(text)
        return len(text)


def _parts(*parts: str) -> list[str]:
    """Returns patterns of parts, one for each character, with white space before each part."""
    return [pattern for part in parts for pattern in (_SPACE, *map(re.escape, part))]


def _beginning(form: ToolFormat, *before_name: str) -> re.Pattern[str]:
    """Returns what matches parts up to the arguments of a call; the group `name` is the name."""
    quote = map(re.escape, form.quote)
    return _expected(*_parts(*before_name, form.quote), _NAME, *quote, *_parts(*form.after_name))


def _expected(*patterns: str) -> re.Pattern[str]:
    """Returns what matches texts that begin with all of the patterns, or end before they do.

    If they do not end before, there is a group `whole`.
    """
    expected = "(?P<whole>)"
    for pattern in reversed(patterns):
        expected = rf"{pattern}(?:{expected}|\Z)"
    return re.compile(expected)
