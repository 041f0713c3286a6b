"""`optimist train continuations`: counts what follows what in texts, for the proposer's guesses."""

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from optimist_aligner.model.common import Continuations, write_continuations
from optimist_common.errors import SetupError
from optimist_training.data.options import (
    read_json_lines,
    require_file_name,
    require_positive,
    write_out,
)

_PIECE = re.compile(
    r"'(?i:[sdmt]|ll|ve|re)|(?:[^\r\n\w]|_)?[^\W\d_]+|\d{1,3}| ?(?:[^\s\w]|_)+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Splits texts as the tokenizers of GPT-4, Llama 3 and Qwen do before they merge bytes."""
_MOST_FOLLOWING = 8
_LEAST_CHANCE = 0.02


class _Bounds(NamedTuple):
    least_count: int
    """Of a continuation."""
    least_repos: int
    """Repositories that it is met in."""
    most: int
    """Contexts of one piece, and of two."""


_Pieces = tuple[str, ...]
_Contexts = defaultdict[_Pieces, Counter[str]]


class _Context(NamedTuple):
    """Pieces, and what is met after them."""

    pieces: _Pieces
    total: int
    following: list[tuple[str, int]]


def add_continuations_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "--texts", type=Path, nargs="+", required=True, help="JSONL files with text and repo"
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write (.json.gz)")
    parser.add_argument("--least-count", type=int, default=3, help="of a continuation")
    parser.add_argument("--least-repos", type=int, default=2, help="that a continuation is met in")
    parser.add_argument("--most", type=int, default=30_000, help="contexts of each length")


def train_continuations(options: argparse.Namespace) -> None:
    """Counts `options.texts` and writes the counts; raises SetupError for files of no use."""
    require_file_name(options.out)
    require_positive(options, "least_count", "least_repos", "most")
    bounds = _Bounds(options.least_count, options.least_repos, options.most)
    counted = count_continuations(_read(options.texts), bounds)
    if not counted.pieces:
        raise SetupError("--texts: nothing is met often enough")
    write_out(options.out, write_continuations(counted))
    print(f"{len(counted.pieces)} pieces, {len(counted.after_two)} contexts of two")


def count_continuations(texts: Iterable[tuple[str, str]], bounds: _Bounds) -> Continuations:
    """Returns what is met often enough in texts, each with the name of its repository."""
    singles: Counter[str] = Counter()
    contexts: tuple[_Contexts, _Contexts] = (defaultdict(Counter), defaultdict(Counter))
    repos: defaultdict[_Pieces, set[str]] = defaultdict(set)
    for repo, text in texts:
        pieces = _PIECE.findall(text)
        singles.update(pieces)
        for order, counts in enumerate(contexts, 1):
            for end in range(order, len(pieces)):
                context = tuple(pieces[end - order : end])
                counts[context][pieces[end]] += 1
                repos[*context, pieces[end]].add(repo)
    ones, twos = (_choose(counts, repos, bounds) for counts in contexts)
    used = {piece for each in (*ones, *twos) for piece in _pieces_of(each)}
    # Frequent ones get short numbers, and similar rows are beside each other.
    pieces = sorted(used, key=lambda piece: (-singles[piece], piece))
    index = {piece: number for number, piece in enumerate(pieces)}
    rows = [sorted(_row(each, index) for each in chosen) for chosen in (ones, twos)]
    return Continuations(pieces, [singles[piece] for piece in pieces], *rows)


def _choose(
    contexts: _Contexts, repos: Mapping[_Pieces, set[str]], bounds: _Bounds
) -> list[_Context]:
    """Returns the contexts with most that is met often enough after them."""
    chosen: list[_Context] = []
    for context, counts in contexts.items():
        least = max(bounds.least_count, _LEAST_CHANCE * counts.total())
        following = [
            (piece, count)
            for piece, count in counts.most_common(_MOST_FOLLOWING)
            if count >= least and len(repos[*context, piece]) >= bounds.least_repos
        ]
        if following:
            chosen.append(_Context(context, counts.total(), following))
    chosen.sort(key=lambda each: (-sum(count for _, count in each.following), each.pieces))
    return chosen[: bounds.most]


def _pieces_of(context: _Context) -> Iterator[str]:
    yield from context.pieces
    for piece, _ in context.following:
        yield piece


def _row(context: _Context, index: Mapping[str, int]) -> list[int]:
    """Returns a row of `Continuations`."""
    row = [index[piece] for piece in context.pieces]
    row.append(context.total)
    for piece, count in context.following:
        row += [index[piece], count]
    return row


def _read(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    for path in paths:
        for where, row in read_json_lines(path, "--texts"):
            if "text" not in row:
                raise SetupError(f"--texts: {where} has no 'text'")
            yield str(row.get("repo", "")), row["text"]
