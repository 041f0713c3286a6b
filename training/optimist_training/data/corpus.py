"""Functions and classes of Python's own standard library, split by file."""

import ast
import hashlib
import os
import re
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Split = Literal["train", "unseen"]

MIN_LINES, MAX_LINES = 5, 24
MAX_CHARACTERS = 700
"""Keeps nearly all answers below 320 tokens; on average they have 130."""

_UNSEEN_SHARE = 10
"""One file in so many is kept out of training."""

# Slim installations leave the tests out, so they cannot be part of a reproducible corpus.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}

_ROOT = Path(sysconfig.get_paths()["stdlib"])
_PRINTABLE = re.compile(r"[\n -~]*")
_BLOCKS = {"body", "orelse", "finalbody", "handlers", "cases"}
"""Fields of syntax trees that hold statements."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Snippet:
    """One function, method or class, without the indentation it has in its file."""

    path: str
    """Of the file, relative to the root of the standard library."""
    code: str

    def definition(self) -> Definition:
        """Returns the syntax tree of the snippet's only statement."""
        statement = ast.parse(self.code).body[0]
        if not isinstance(statement, Definition):
            raise TypeError(f"{self.path}: {type(statement).__name__} is no definition")
        return statement


def split_of(path: str) -> Split:
    """Returns which split a file belongs to, by a hash of its path, so that it never changes."""
    digest = hashlib.sha256(path.encode()).digest()
    return "unseen" if digest[0] % _UNSEEN_SHARE == 0 else "train"


@cache
def snippets(split: Split) -> tuple[Snippet, ...]:
    """Returns all snippets of a split, ordered by path and position."""
    found = [snippet for path in _paths(split) for snippet in _snippets_of(path)]
    if split == "unseen":
        # A few definitions are in two files, one of which may belong to training.
        longest = {max(map(str.strip, snippet.code.splitlines()), key=len) for snippet in found}
        seen = {
            snippet.code
            for path in _paths("train")
            # Most files need not be parsed to see that they have none of them.
            if not longest.isdisjoint(map(str.strip, _text(path).splitlines()))
            for snippet in _snippets_of(path)
        }
        found = [snippet for snippet in found if snippet.code not in seen]
    return tuple(found)


def _paths(split: Split) -> Iterator[Path]:
    """Yields the files of a split in order, relative to the root."""
    found = []
    for folder, folders, names in os.walk(_ROOT):
        folders[:] = set(folders) - _LEFT_OUT
        here = Path(folder).relative_to(_ROOT)
        found += [here / name for name in names if name.endswith(".py")]
    return (path for path in sorted(found) if split_of(path.as_posix()) == split)


def _text(path: Path) -> str:
    """Returns what a file has; nothing if it is more than ASCII."""
    try:
        return (_ROOT / path).read_bytes().decode("ascii")
    except UnicodeDecodeError:
        return ""


def _snippets_of(path: Path) -> Iterator[Snippet]:
    text = _text(path)
    try:
        statements: list[ast.AST] = [ast.parse(text)]
    except (SyntaxError, ValueError):
        return
    lines = text.splitlines()
    # Level by level, as `ast.walk` does, but without expressions: they hold no definition.
    while statements:
        for node in statements:
            if isinstance(node, Definition) and _is_usable(code := _code(node, lines)):
                yield Snippet(path.as_posix(), code)
        statements = [
            inner
            for node in statements
            for name in node._fields
            if name in _BLOCKS
            for inner in getattr(node, name)
        ]


def _code(node: Definition, lines: list[str]) -> str:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    rows = [line.rstrip() for line in lines[first - 1 : node.end_lineno]]
    return textwrap.dedent("\n".join(rows)).strip("\n")


def _is_usable(code: str) -> bool:
    """Returns whether a snippet has the wanted size and is complete."""
    if not MIN_LINES <= code.count("\n") + 1 <= MAX_LINES or len(code) > MAX_CHARACTERS:
        return False
    if not _PRINTABLE.fullmatch(code):
        return False
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return False
    return len(body) == 1 and isinstance(body[0], Definition)
