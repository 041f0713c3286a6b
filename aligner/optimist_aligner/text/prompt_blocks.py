"""Blocks of a prompt that an answer is likely to repeat: fenced, tagged, or with line numbers."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^`\n]*)$", re.MULTILINE)
_TAG = re.compile(r"^[ \t]*<([A-Za-z_][\w.:-]*)(?:\s[^<>\n]*)?>[ \t]*\n?", re.MULTILINE)
_TEXT_TAG = re.compile(
    r"(?i)(?:.+[-_])?(?:before|code|content|document|draft|essay|file|input|original|page|selection"
    r"|snippet|source|text)s?(?:[-_].+)?"
)
"""Others (`<instructions>`, `<output>`, `<tool_call>`) hold what is not rewritten."""
_NUMBER = re.compile(r"^ *(\d{1,7})(→|\t|:| ?\|)", re.MULTILINE)
_LEAST_LINES = 3
"""Fewer lines with ascending numbers may be a list."""


class Block(NamedTuple):
    """A part of a prompt, in characters of the prompt."""

    start: int
    end: int
    is_text: bool
    """Whether this may be a text to be rewritten, by its tag; in a fence it always may."""


class NumberedLines(NamedTuple):
    """Lines with ascending numbers, as tools show files."""

    start: int
    text: str
    """The lines without their numbers."""


def find_blocks(prompt: str) -> list[Block]:
    """Returns what stands in fences and tags, by where it begins; inner blocks are left out."""
    found = sorted([*_find_fenced(prompt), *_find_tagged(prompt)])
    blocks: list[Block] = []
    for block in found:
        if block.start < block.end and (not blocks or block.start >= blocks[-1].end):
            blocks.append(block)
    return blocks


def _find_fenced(prompt: str) -> Iterator[Block]:
    """Iterates over the outermost fences that are closed.

    Inside of a fence one with an info string opens another one, and one without closes the last.
    """
    lengths: list[int] = []
    start = 0
    for fence in _FENCE.finditer(prompt):
        mark, info = fence[1], fence[2].strip()
        if not lengths:
            start = fence.end() + 1
            lengths.append(len(mark))
        elif info:
            lengths.append(len(mark))
        elif len(mark) >= lengths[-1]:
            lengths.pop()
            if not lengths:
                yield Block(start, max(start, fence.start()), True)


def _find_tagged(prompt: str) -> Iterator[Block]:
    """Iterates over the outermost elements whose opening tag begins a line."""
    position = 0
    while (tag := _TAG.search(prompt, position)) is not None:
        end = prompt.find(f"</{tag[1]}>", tag.end())
        if end < 0:
            position = tag.end()
        else:
            yield Block(tag.end(), end, _TEXT_TAG.fullmatch(tag[1]) is not None)
            position = end


def find_numbered_lines(prompt: str) -> list[NumberedLines]:
    """Returns files that are shown with line numbers: `n→`, `n<tab>`, `n:`, `n|`, `n | `."""
    found: list[NumberedLines] = []
    lines: list[str] = []
    start, last, mark, end = 0, -1, "", -1
    for match in _NUMBER.finditer(prompt):
        number = int(match[1])
        if match.start() != end or number != last + 1 or match[2] != mark:
            _add(found, start, mark, lines)
            lines, start, mark = [], match.start(), match[2]
        last = number
        line_end = prompt.find("\n", match.end())
        end = len(prompt) if line_end < 0 else line_end + 1
        lines.append(prompt[match.end() : end])
    _add(found, start, mark, lines)
    return found


def _add(found: list[NumberedLines], start: int, mark: str, lines: list[str]) -> None:
    if len(lines) < _LEAST_LINES:
        return
    if mark.endswith("|") and all(line[0] in " \n" for line in lines if line):
        lines = [line.removeprefix(" ") for line in lines]
    found.append(NumberedLines(start, "".join(lines)))
