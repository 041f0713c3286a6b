"""Reads what a message is made of out of an answer's text as it arrives."""

import re
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass

from optimist_gateway.core.answer.detokenize import find_marker
from optimist_gateway.core.answer.thinking import SPACES, ThinkingReader
from optimist_gateway.structure.tool_format import MAX_PART_SPACE, SPACE, ToolFormat

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
        self._deltas: list[Delta] = []
        self._reading = self._read()

    def push(self, text: str) -> list[Delta]:
        """Adds a piece of text; returns what is certain now."""
        self._buffer += text
        next(self._reading)
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
        self._reading.close()
        return self._taken()

    def _taken(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    # What follows reads the buffer from the beginning, and yields whenever it needs more text.

    def _read(self) -> Generator[None]:
        """Reads a whole message: text, calls, and what is no call any more."""
        form = self._form
        following, end, closing = _NEVER, _expected(*_parts(*form.end)), _NEVER
        if form.separator is not None:
            following = _beginning(form, *form.separator, *form.before_name)
        if form.closing:
            closing = _expected(*_parts(*form.closing))
        is_call = yield from self._first_call()
        while is_call:
            yield from self._arguments()
            if not (yield from self._skip(end)) or (yield from self._skip(closing)):
                break
            is_call = yield from self._begin_call(following)
        while True:
            self._add_content(self._take(len(self._buffer)))
            yield

    def _first_call(self) -> Generator[None, None, bool]:
        """Reads up to the arguments of the first call; returns False if what comes is none."""
        form = self._form
        beginning = _beginning(form, *form.opening, *form.before_name)
        if not form.follows_text:
            return (yield from self._begin_call(beginning))
        yield from self._text()
        while not (yield from self._begin_call(beginning)):
            # The marker begins no call; the next one may.
            self._add_content(self._take(len(form.marker)))
            yield from self._text()
        return True

    def _text(self) -> Iterator[None]:
        """Reads text up to the first marker."""
        is_found = False
        while not is_found:
            start, is_found = find_marker(self._buffer, self._form.marker)
            self._add_content(self._take(start))
            if not is_found:
                yield

    def _begin_call(self, beginning: re.Pattern[str]) -> Generator[None, None, bool]:
        """Reads up to the arguments of a call; returns False, and reads nothing, if it is none."""
        match = yield from self._match(beginning)
        if match is None or match["name"] not in self._names:
            return False
        self._take(match.end())
        self._spaces = ""
        self._deltas.append(CallDelta(self.num_calls, match["name"], ""))
        self.num_calls += 1
        return True

    def _arguments(self) -> Iterator[None]:
        while not (arguments := self._buffer.lstrip(SPACES)):
            yield
        self._buffer = arguments
        scan = _ObjectScan()
        while not scan.has_ended:
            if arguments := self._take(scan.push(self._buffer)):
                self._deltas.append(CallDelta(self.num_calls - 1, None, arguments))
            if not scan.has_ended:
                yield

    def _skip(self, expected: re.Pattern[str]) -> Generator[None, None, bool]:
        """Reads what is expected; returns False, and reads nothing, if something else comes."""
        match = yield from self._match(expected)
        if match is not None:
            self._take(match.end())
        return match is not None

    def _match(self, expected: re.Pattern[str]) -> Generator[None, None, re.Match[str] | None]:
        while (match := expected.match(self._buffer)) is not None and match["whole"] is None:
            yield
        return match

    def _take(self, length: int) -> str:
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        return taken

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
        self.has_ended = False

    def push(self, text: str) -> int:
        """Reads on; returns up to where the text belongs to the object."""
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
