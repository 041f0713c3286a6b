"""Sizes of files, functions and folders."""

import ast
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MOST_FILES = 15
"""Of equal rank in a folder."""


class Length(NamedTuple):
    """How long a file or function is."""

    lines: int
    name: str


class Sizes(NamedTuple):
    """Of the Python files below a folder; lines include blanks, comments and docstrings."""

    files: int
    lines: int
    file_p50: int
    file_p95: int
    file_max: int
    function_p50: int
    function_p95: int
    function_max: int
    longest_file: str
    longest_function: str


def sources(folder: Path) -> list[Path]:
    """Returns the Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def measure_sizes(folder: Path) -> Sizes:
    """Returns the sizes of what is below a folder, names relative to it."""
    files: list[Length] = []
    functions: list[Length] = []
    for path in sources(folder):
        name = str(path.relative_to(folder))
        text = path.read_text()
        files.append(Length(len(text.splitlines()), name))
        functions += _function_lengths(ast.parse(text), name)
    longest_file = max(files)
    longest_function = max(functions, default=Length(0, ""))
    return Sizes(
        len(files),
        sum(file.lines for file in files),
        percentile(files, 0.5),
        percentile(files, 0.95),
        longest_file.lines,
        percentile(functions, 0.5),
        percentile(functions, 0.95),
        longest_function.lines,
        longest_file.name,
        longest_function.name,
    )


def _function_lengths(tree: ast.AST, name: str) -> Iterator[Length]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno
            yield Length(node.end_lineno - node.lineno + 1, f"{name}:{node.name}")


def percentile(lengths: Iterable[Length], share: float) -> int:
    """Returns the least length that a share of all does not exceed; 0 of none."""
    ordered = sorted(lengths)
    return ordered[math.ceil(share * len(ordered)) - 1].lines if ordered else 0


def full_folders(folder: Path) -> dict[Path, int]:
    """Returns the folders with more than MOST_FILES files, not counting `__init__.py`."""
    counts = Counter(path.parent for path in sources(folder) if path.name != "__init__.py")
    return {each: count for each, count in counts.most_common() if count > MOST_FILES}
