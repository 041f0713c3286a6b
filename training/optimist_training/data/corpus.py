"""Functions and classes of Python's own standard library, split by file."""

import ast
import hashlib
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
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if not _LEFT_OUT.intersection(path.parts) and split_of(path.as_posix()) == split:
            found += list(_snippets_of(path.as_posix(), file.read_bytes()))
    if split == "unseen":
        # A few definitions stand in two files.
        seen = {snippet.code for snippet in snippets("train")}
        found = [snippet for snippet in found if snippet.code not in seen]
    return tuple(found)


def _snippets_of(path: str, content: bytes) -> Iterator[Snippet]:
    try:
        text = content.decode("ascii")
        tree = ast.parse(text)
    except (UnicodeDecodeError, SyntaxError, ValueError):
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            code = _code(node, lines)
            if _is_usable(code):
                yield Snippet(path, code)


def _code(node: Definition, lines: list[str]) -> str:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    rows = [line.rstrip() for line in lines[first - 1 : node.end_lineno]]
    return textwrap.dedent("\n".join(rows)).strip("\n")


def _is_usable(code: str) -> bool:
    """Tells whether a snippet has the wanted size and stands on its own."""
    if not MIN_LINES <= code.count("\n") + 1 <= MAX_LINES or len(code) > MAX_CHARACTERS:
        return False
    if not all(character == "\n" or " " <= character <= "~" for character in code):
        return False
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return False
    return len(body) == 1 and isinstance(body[0], Definition)
