"""Text of a model on a terminal: nothing in it moves the cursor, and it fits."""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from optimist_cli.explain.window import Origin

_CONTROL_PICTURES = 0x2400
_NAMES = {"\n": "↵", "\t": "⇥", "\x7f": "␡"}

RESET = "\x1b[0m"
_COLOURS = {
    Origin.PREDICTION: "\x1b[32m",
    Origin.PROMPT: "\x1b[34m",
    Origin.OWN_TEXT: "\x1b[36m",
    Origin.MODEL: "\x1b[33m",
}
_MARKS = {
    Origin.PREDICTION: ("", ""),
    Origin.PROMPT: ("⟨", "⟩"),
    Origin.OWN_TEXT: ("‹", "›"),  # noqa: RUF001
    Origin.MODEL: ("«", "»"),
}
_BOLD, _DIM = "\x1b[1m", "\x1b[2m"


def visible(text: str) -> str:
    """Returns a text with a picture or an escape in place of everything that is not printed."""
    return "".join(character if character.isprintable() else _show(character) for character in text)


def width_of(text: str) -> int:
    """Returns how many columns a visible text takes."""
    return sum(
        0
        if unicodedata.combining(character)
        else 2
        if unicodedata.east_asian_width(character) in "WF"
        else 1
        for character in text
    )


def fit(text: str, width: int) -> str:
    """Cuts a visible text to a width; an ellipsis shows it."""
    if width_of(text) <= width:
        return text
    kept, room = [], max(width, 1) - 1
    for character in text:
        room -= width_of(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + "…"


def _show(character: str) -> str:
    if character in _NAMES:
        return _NAMES[character]
    code = ord(character)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@dataclass(frozen=True, slots=True)
class Style:
    """How a page looks."""

    is_coloured: bool
    width: int

    def strong(self, text: str) -> str:
        """Returns a heading."""
        return f"{_BOLD}{text}{RESET}" if self.is_coloured else text

    def faint(self, text: str) -> str:
        """Returns what matters less."""
        return f"{_DIM}{text}{RESET}" if self.is_coloured else text

    def by_origin(self, text: str, origin: Origin) -> str:
        """Returns a text in the colour, or between the marks, of where it came from."""
        if self.is_coloured:
            return f"{_COLOURS[origin]}{text}{RESET}"
        before, after = _MARKS[origin]
        return f"{before}{text}{after}"

    def lines_by_origin(self, pieces: Iterable[tuple[str, Origin]], indent: str) -> Iterator[str]:
        """Iterates over the lines of a text; those wider than the page go on in the next.

        Args:
            pieces: Texts and where each came from.
            indent: What every line begins with.
        """
        room = max(self.width - len(indent) - 2, 8)
        line: list[tuple[str, Origin]] = []
        num_columns = 0
        for text, origin in pieces:
            for character in text:
                shown = visible(character)
                if num_columns + width_of(shown) > room:
                    yield indent + self._runs(line)
                    line, num_columns = [], 0
                line.append((shown, origin))
                num_columns += width_of(shown)
                if character == "\n":
                    yield indent + self._runs(line)
                    line, num_columns = [], 0
        if line:
            yield indent + self._runs(line)

    def _runs(self, line: list[tuple[str, Origin]]) -> str:
        return "".join(
            self.by_origin("".join(text for text, _ in run), origin)
            for origin, run in groupby(line, lambda part: part[1])
        )
