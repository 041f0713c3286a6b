"""What commonly follows in texts that models write, for where nothing is repeated.

The package has counts of pieces (words, signs, white space) after one and two others, taken from
public conversations with coding agents. They are turned into tokens of the vocabulary at hand.
"""

import gzip
import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import accumulate, chain, islice, pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from optimist_aligner.model.layout import NUM_CHANCES, NUM_CLASSES, START
from optimist_aligner.text.context_index import TOKEN_BITS
from optimist_aligner.text.token_class import TokenClasses
from optimist_aligner.text.vocabulary import Encode

_FILE: Final = "continuations.json.gz"
_TABLES: Final = ("after_one", "after_two")
_MOST_TOKENS: Final = 8
"""After one context."""
_LEAST_CHANCE: Final = 0.02
_CHANCES: Final = (0.04, 0.08, 0.16, 0.3, 0.5, 0.75)
_MANY, _ENOUGH = 200, 20
"""Counts of a context from which its chances are believed more."""
BY_TWO, BY_ONE, BY_CLASS = range(3)

Row = tuple[int, int]
"""A token, and the feature of how common it is."""
Table = dict[int, tuple[Row, ...]]
_Counts = defaultdict[int, dict[int, int]]
_NONE: tuple[Row, ...] = ()


class Continuations(NamedTuple):
    """Counts of pieces of text; pieces are named by their index.

    Attributes:
        pieces: Each piece.
        counts: How often each is met [num_pieces].
        after_one: Rows of a piece, how often it is met, and pairs of what follows and how often.
        after_two: The same after two pieces.
    """

    pieces: list[str]
    counts: list[int]
    after_one: list[list[int]]
    after_two: list[list[int]]


class Common:
    """Common tokens after the last two, the last, or the class of the last.

    Attributes:
        twos: Rows by the key of the last two tokens.
        ones: Rows by the last token.
        classes: Rows by the class of the last token [NUM_CLASSES].
    """

    def __init__(self, counted: Continuations, encode: Encode, classes: TokenClasses) -> None:
        """Turns pieces into tokens.

        Args:
            counted: Of pieces.
            encode: Returns the tokens of a text.
            classes: Of the tokens.
        """
        ones, twos = _count_tokens(counted, [list(encode(piece)) for piece in counted.pieces])
        by_class: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for token_id, following in ones.items():
            by_class[classes.find(token_id)].update(following)
        self.twos = _tabulate(twos, BY_TWO)
        self.ones = _tabulate(ones, BY_ONE)
        class_rows = _tabulate(by_class, BY_CLASS, least_chance=0.0)
        self.classes = [class_rows.get(klass, _NONE) for klass in range(NUM_CLASSES)]

    def find_further(self, before: int, last: int) -> Iterable[Row]:
        """Returns what commonly follows two tokens, or the last of them."""
        return self.twos.get(_key(before, last)) or self.ones.get(last, _NONE)

    def find(self, text: Sequence[int], last_class: int) -> Iterable[Row]:
        """Returns what commonly follows a text, likely or not; a token may be named twice."""
        if not text:
            return _NONE
        last = text[-1]
        ones = self.ones.get(last) or self.classes[last_class]
        if len(text) < 2:
            return ones
        twos = self.twos.get(_key(text[-2], last))
        return ones if twos is None else (*twos, *ones)


def load_continuations() -> Continuations:
    """Returns the counts that come with the package."""
    return read_continuations(files(__package__).joinpath(_FILE).read_bytes())


def read_continuations(data: bytes) -> Continuations:
    """Reads counts as `write_continuations` wrote them."""
    read = json.loads(gzip.decompress(data))
    rows = [_to_rows(*read[name]) for name in _TABLES]
    return Continuations(read["pieces"], read["counts"], *rows)


def write_continuations(counted: Continuations) -> bytes:
    """Returns counts as they are kept in a file; the same ones give the same bytes."""
    written = counted._asdict()
    for order, name in enumerate(_TABLES, 1):
        written[name] = _to_columns(written[name], order)
    text = json.dumps(written, ensure_ascii=False, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


def _to_columns(rows: list[list[int]], order: int) -> list[list[int]]:
    """Returns rows by columns, which take a fifth less space when they are compressed.

    The first piece, as the difference from that of the row before; the second one, if there is one;
    the total; how many pieces follow; these pieces of all rows; and how often each follows.
    """
    firsts = [row[0] for row in rows]
    return [
        [each - before for before, each in pairwise([0, *firsts])],
        *[[row[index] for row in rows] for index in range(1, order + 1)],
        [(len(row) - order - 1) // 2 for row in rows],
        [piece for row in rows for piece in row[order + 1 :: 2]],
        [count for row in rows for count in row[order + 2 :: 2]],
    ]


def _to_rows(differences: list[int], *columns: list[int]) -> list[list[int]]:
    """Returns rows by what `_to_columns` made of them."""
    *others, sizes, pieces, counts = columns
    following = chain.from_iterable(zip(pieces, counts, strict=True))
    return [
        [*context, *islice(following, 2 * size)]
        for *context, size in zip(accumulate(differences), *others, sizes, strict=True)
    ]


def _key(before: int, last: int) -> int:
    return (before << TOKEN_BITS) | last


def _count_tokens(counted: Continuations, tokens: list[list[int]]) -> tuple[_Counts, _Counts]:
    """Returns how often tokens stand after one token, and after two (`_key`)."""
    ones: _Counts = defaultdict(dict)
    twos: _Counts = defaultdict(dict)
    for piece, count in zip(tokens, counted.counts, strict=True):
        for before, token_id in pairwise(piece):
            _add(ones[before], token_id, count)
        for index in range(2, len(piece)):
            _add(twos[_key(piece[index - 2], piece[index - 1])], piece[index], count)
    firsts = [piece[0] if piece else _OTHER for piece in tokens]
    for before, total, *following in counted.after_one:
        if tokens[before]:
            last = tokens[before][-1]
            _add_row(ones[last], firsts, total, following)
            for each, count in _pairs(following):
                if len(tokens[each]) > 1:
                    _add(twos[_key(last, tokens[each][0])], tokens[each][1], count)
    for before, after, total, *following in counted.after_two:
        context = (tokens[before] + tokens[after])[-2:]
        if len(context) == 2:
            _add_row(twos[_key(*context)], firsts, total, following)
    return ones, twos


def _pairs(following: list[int]) -> Iterable[tuple[int, int]]:
    each = iter(following)
    return zip(each, each, strict=True)


_OTHER: Final = -1
"""Stands for all that is not named."""


def _add(counts: dict[int, int], token_id: int, count: int) -> None:
    counts[token_id] = counts.get(token_id, 0) + count


def _add_row(counts: dict[int, int], firsts: list[int], total: int, following: list[int]) -> None:
    for piece, count in _pairs(following):
        token_id = firsts[piece]
        counts[token_id] = counts.get(token_id, 0) + count
        total -= count
    _add(counts, _OTHER, total)


def _tabulate(
    counted: Mapping[int, Mapping[int, int]], order: int, least_chance: float = _LEAST_CHANCE
) -> Table:
    table: Table = {}
    kept: dict[Row, Row] = {}
    for context, counts in counted.items():
        total = sum(counts.values())
        evidence = (total >= _ENOUGH) + (total >= _MANY)
        first = START["common"] + (order * 3 + evidence) * NUM_CHANCES
        least = least_chance * total
        likely = [each for each in counts.items() if each[1] >= least and each[0] != _OTHER]
        likely.sort(key=itemgetter(1), reverse=True)
        rows = [
            (token_id, first + bisect_right(_CHANCES, count / total))
            for token_id, count in likely[:_MOST_TOKENS]
        ]
        if rows:
            # Most rows are met often; one of each takes less memory.
            table[context] = tuple([kept.setdefault(row, row) for row in rows])
    return table
