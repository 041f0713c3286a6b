"""Sizes of files, functions and folders, and imports between folders."""

import ast
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import grimp

Import = tuple[str, str]

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


def folder_imports(package: str) -> dict[Import, list[Import]]:
    """Returns the imports between modules in different folders, by these folders.

    An entry point, `__main__`, stands above all folders: what it imports is left out.
    """
    graph = grimp.build_graph(package, cache_dir=None)
    imports: dict[Import, list[Import]] = {}
    for module in sorted(graph.modules):
        for target in sorted(graph.find_modules_directly_imported_by(module)):
            between = _folder(graph, module), _folder(graph, target)
            if between[0] != between[1] and not module.endswith(".__main__"):
                imports.setdefault(between, []).append((module, target))
    return imports


def _folder(graph: grimp.ImportGraph, module: str) -> str:
    return module if graph.find_children(module) else module.rpartition(".")[0]


def upward_imports(imports: dict[Import, list[Import]]) -> list[Import]:
    """Returns the imports that run upward where folders stand so that the fewest do.

    Folders named `core` and those in them stand below all others. Without circles, and without
    imports from `core` to others, none runs upward.
    """
    folders = {folder for between in imports for folder in between}
    cores = frozenset(folder for folder in folders if "core" in folder.split("."))
    order = _best_order(frozenset(folders) - cores, imports) + _best_order(cores, imports)
    height = {folder: -index for index, folder in enumerate(order)}
    return [
        each
        for (source, target), between in imports.items()
        if height[source] < height[target]
        for each in between
    ]


def _best_order(folders: frozenset[str], imports: dict[Import, list[Import]]) -> tuple[str, ...]:
    """Returns the folders from the top down, with the fewest imports upward."""
    weights = Counter({between: len(found) for between, found in imports.items()})

    @cache
    def best(below: frozenset[str]) -> tuple[int, tuple[str, ...]]:
        return min(
            (
                (count + sum(weights[other, top] for other in rest), (top, *order))
                for top in below
                for rest in [below - {top}]
                for count, order in [best(rest)]
            ),
            default=(0, ()),
        )

    return best(folders)[1]


def circles(arrows: Iterable[Import]) -> list[list[str]]:
    """Returns the groups of folders of which each imports, through others, all others."""
    reached: dict[str, set[str]] = {}
    pairs = set(arrows)
    for folder in {folder for pair in pairs for folder in pair}:
        found: set[str] = set()
        new = {folder}
        while new:
            new = {target for source, target in pairs if source in new} - found
            found |= new
        reached[folder] = found
    groups = {
        frozenset(other for other in found if folder in reached[other])
        for folder, found in reached.items()
        if folder in found
    }
    return sorted(sorted(group) for group in groups)
