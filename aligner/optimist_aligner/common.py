"""What commonly follows in texts that models write, for where nothing is repeated.

The package has counts of pieces (words, signs, white space) behind one and two others, taken from
public conversations with coding agents. They are turned into tokens of the vocabulary at hand.
"""

import gzip
import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import chain, pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from optimist_aligner.context_index import MOST_TOKEN_ID, TOKEN_BITS
from optimist_aligner.layout import NUM_CHANCES, NUM_CLASSES, START
from optimist_aligner.token_class import TokenClasses
from optimist_aligner.vocabulary import Encode

_FILE: Final = "continuations.json.gz"
_MOST_TOKENS: Final = 8
"""Behind one context."""
_LEAST_CHANCE: Final = 0.02
_CHANCES: Final = (0.04, 0.08, 0.16, 0.3, 0.5, 0.75)
_MANY, _ENOUGH = 200, 20
"""Counts of a context from which its chances are believed more."""
BY_TWO, BY_ONE, BY_CLASS = range(3)

Row = tuple[int, int]
"""A token, and the feature of how common it is."""
Table = dict[int, tuple[Row, ...]]
_Counts = defaultdict[int, Counter[int]]
_NONE: tuple[Row, ...] = ()


class Continuations(NamedTuple):
    """Counts of pieces of text; pieces are named by their index.

    Attributes:
        pieces: Each piece.
        counts: How often each is met [num_pieces].
        after_one: Rows of a piece, how often it is met, and pairs of what follows and how often.
        after_two: The same behind two pieces.
    """

    pieces: list[str]
    counts: list[int]
    after_one: list[list[int]]
    after_two: list[list[int]]


class Common:
    """Common tokens behind the last two, the last, or the class of the last."""

    def __init__(self, counted: Continuations, encode: Encode, classes: TokenClasses) -> None:
        """Turns pieces into tokens.

        Args:
            counted: Of pieces.
            encode: Returns the tokens of a text.
            classes: Of the tokens.
        """
        ones, twos = _count_tokens(counted, [list(encode(piece)) for piece in counted.pieces])
        classes.cover([*ones, *chain.from_iterable(ones.values())])
        by_class: _Counts = defaultdict(Counter)
        for token_id, following in ones.items():
            by_class[classes.table[token_id]].update(following)
        self._twos = _tabulate(twos, BY_TWO)
        self._ones = _tabulate(ones, BY_ONE)
        class_rows = _tabulate(by_class, BY_CLASS, least_chance=0.0)
        self._classes = [class_rows.get(klass, _NONE) for klass in range(NUM_CLASSES)]

    def find_further(self, before: int, last: int) -> Iterable[Row]:
        """Returns what commonly follows two tokens, or the last of them."""
        return self._twos.get(_key(before, last)) or self._ones.get(last, _NONE)

    def find(self, text: Sequence[int], last_class: int) -> Iterable[Row]:
        """Returns what commonly follows a text, likely or not; a token may be named twice."""
        if not text:
            return _NONE
        last = min(text[-1], MOST_TOKEN_ID)
        ones = self._ones.get(last) or self._classes[last_class]
        if len(text) < 2:
            return ones
        twos = self._twos.get(_key(text[-2], last))
        return ones if twos is None else (*twos, *ones)


def load_continuations() -> Continuations:
    """Returns the counts that come with the package."""
    return read_continuations(files(__package__).joinpath(_FILE).read_bytes())


def read_continuations(data: bytes) -> Continuations:
    """Reads counts as `write_continuations` wrote them."""
    return Continuations(**json.loads(gzip.decompress(data)))


def write_continuations(counted: Continuations) -> bytes:
    """Returns counts as they are kept in a file; the same ones give the same bytes."""
    text = json.dumps(counted._asdict(), ensure_ascii=False, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


def _key(before: int, last: int) -> int:
    return (before << TOKEN_BITS) | last


def _count_tokens(counted: Continuations, tokens: list[list[int]]) -> tuple[_Counts, _Counts]:
    """Returns how often tokens stand behind one token, and behind two (`_key`)."""
    ones: _Counts = defaultdict(Counter)
    twos: _Counts = defaultdict(Counter)
    for piece, count in zip(tokens, counted.counts, strict=True):
        for before, token_id in pairwise(piece):
            ones[before][token_id] += count
        for index in range(2, len(piece)):
            twos[_key(piece[index - 2], piece[index - 1])][piece[index]] += count
    for row in counted.after_one:
        context = tokens[row[0]][-1:]
        if context:
            _add(ones[context[0]], tokens, row[1], row[2:])
            for each, count in _pairs(row[2:]):
                if len(tokens[each]) > 1:
                    twos[_key(context[0], tokens[each][0])][tokens[each][1]] += count
    for row in counted.after_two:
        context = (tokens[row[0]] + tokens[row[1]])[-2:]
        if len(context) == 2:
            _add(twos[_key(*context)], tokens, row[2], row[3:])
    return ones, twos


def _pairs(following: list[int]) -> Iterable[tuple[int, int]]:
    return zip(following[::2], following[1::2], strict=True)


_OTHER: Final = -1
"""Stands for all that is not named."""


def _add(counts: Counter[int], tokens: list[list[int]], total: int, following: list[int]) -> None:
    for piece, count in _pairs(following):
        if tokens[piece]:
            counts[tokens[piece][0]] += count
            total -= count
    counts[_OTHER] += total


def _tabulate(
    counted: Mapping[int, Counter[int]], order: int, least_chance: float = _LEAST_CHANCE
) -> Table:
    table: Table = {}
    for context, counts in counted.items():
        total = counts.total()
        evidence = (total >= _ENOUGH) + (total >= _MANY)
        first = START["common"] + (order * 3 + evidence) * NUM_CHANCES
        edges = [each * total for each in _CHANCES]
        # Most contexts are small, where sorting is quicker than `most_common`.
        likeliest = sorted(counts.items(), key=itemgetter(1), reverse=True)[: _MOST_TOKENS + 1]
        rows = tuple(
            (token_id, first + bisect_right(edges, count))
            for token_id, count in likeliest
            if token_id != _OTHER and count >= least_chance * total
        )
        if rows:
            table[context] = rows[:_MOST_TOKENS]
    return table
