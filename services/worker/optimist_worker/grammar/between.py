"""What an output that follows a grammar may write between two values of JSON.

What is forced; white space as before; a next item or the end of a list; members of a closed set.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from optimist_worker.core.form import FORCED_CHANCE, KNOWN_CHANCE, JsonText
from optimist_worker.grammar.draft_tree import Bits

_MOST_BETWEEN = 1024
"""Tokens that may come between values: where more may, the text is free."""
_MOST_ALTERNATIVES = 64
"""Tokens that begin the members of a closed set."""
_MOST_PIECES = 2**14
"""Pieces of text whose tokens are kept, of all outputs."""
_LEAST_LIKELY = 0.05
"""Chance below which nothing more is written ahead."""
_SURE = 0.9
"""Chance below which what comes next is a part of its own."""
_LEAST_INSTEAD = 0.15
"""Chance below which what may come instead is not written ahead."""
_MOST_WAYS = 5
"""Ways to go on between two values."""
_MOST_BYTES = 256
"""Of what is drafted between values."""
_NOT_KNOWN = b"", 0.0


class Between(NamedTuple):
    """What probably comes between two values, from the end of the first one on."""

    parts: list[tuple[bytes, float]]
    """Each with the chance that it comes with all before it."""
    is_last: bool
    """Whether the output ends with it."""
    begins_value: bool
    """Whether a value begins after it that may be copied."""
    digit_place: bytes | None
    """See `JsonText.digit_place`."""


class _Beginning(NamedTuple):
    """What may come between two values up to a piece that is still to be judged."""

    token_ids: list[int]
    """All before the piece."""
    piece: bytes
    parts: list[tuple[bytes, float]]
    """See `Between`; the piece is in the last one."""
    text: JsonText
    """After the piece."""


@lru_cache(_MOST_PIECES)
def _tokenize(tokenizer: LLTokenizer, piece: bytes) -> Sequence[int]:
    return tuple(tokenizer.tokenize_bytes(piece))


class BetweenWriter:
    """Writes ahead by a grammar and by how the output has written so far."""

    def __init__(self, tokenizer: LLTokenizer, end_only: Bits) -> None:
        """Takes the tokenizer and the end tokens, `[num_bytes]`."""
        self._tokenizer, self._end_only = tokenizer, end_only

    def tokenize(self, piece: bytes) -> list[int]:
        """Returns the tokens of a text."""
        return list(_tokenize(self._tokenizer, piece))

    def write(
        self, matcher: LLMatcher, path: list[int], text: JsonText, piece: bytes
    ) -> list[Between]:
        """Returns what may come after a path of drafts, from a piece on, the likeliest first."""
        waiting = [_Beginning(path, piece, [(piece, 1.0)], text)]
        written: list[Between] = []
        while waiting and len(written) < _MOST_WAYS:
            beginning = waiting.pop(0)
            matcher.consume_tokens(beginning.token_ids)
            between, others, num_consumed = self._write_one(matcher, beginning)
            num_consumed += len(beginning.token_ids)
            if num_consumed:
                matcher.rollback(num_consumed)
            waiting += others
            if between.parts[0][0]:
                written.append(between)
        return written

    def _write_one(
        self, matcher: LLMatcher, beginning: _Beginning
    ) -> tuple[Between, list[_Beginning], int]:
        """Returns how a beginning goes on, what may come instead, and how many tokens it took."""
        before, piece, parts, text = beginning
        chance, size = parts[-1][1], 0
        consumed: list[int] = []
        others: list[_Beginning] = []
        while True:
            token_ids = self.tokenize(piece)
            number = matcher.try_consume_tokens(token_ids)
            consumed += token_ids[:number]
            size += len(piece)
            if number < len(token_ids):
                parts[-1] = parts[-1][0].removesuffix(piece), parts[-1][1]
                break
            (piece, likely), *rest = self._find_next(matcher, text)
            if not piece or chance * likely < _LEAST_LIKELY or size > _MOST_BYTES:
                break
            for other, instead in rest:
                if chance * instead > _LEAST_INSTEAD:
                    path, forked = [*before, *consumed], _extend(parts, other, chance, instead)
                    others.append(_Beginning(path, other, forked, text.after(other)))
            parts = _extend(parts, piece, chance, likely)
            chance *= likely
            text.feed(piece)
        is_last = matcher.is_stopped()
        between = Between(parts, is_last, text.begins_value, text.digit_place)
        return between, others, len(consumed)

    def _find_next(self, matcher: LLMatcher, text: JsonText) -> list[tuple[bytes, float]]:
        """Returns what may come where the matcher stands, the likeliest first, with its chance.

        What is not known is an empty piece.
        """
        forced = matcher.compute_ff_bytes()
        # Special tokens are written after this byte, which is in no text.
        if forced:
            return [_NOT_KNOWN if 0xFF in forced else (forced, FORCED_CHANCE)]
        if text.is_in_string:
            known = text.guess_value()
            if known and self._allows(matcher, known[0]):
                return [known]
            return self._find_alternatives(matcher)
        allowed = [one for one in text.guess() if self._allows(matcher, one[0])]
        if not allowed or not 0 < _count(self._find_mask(matcher)) <= _MOST_BETWEEN:
            return [_NOT_KNOWN]
        (first, chance), *others = allowed
        if not others:
            return [(first, KNOWN_CHANCE)]
        return [(first, chance), (others[0][0], 1 - chance)]

    def _allows(self, matcher: LLMatcher, piece: bytes) -> bool:
        token_ids = self.tokenize(piece)
        return matcher.validate_tokens(token_ids) == len(token_ids)

    def _find_alternatives(self, matcher: LLMatcher) -> list[tuple[bytes, float]]:
        """Returns how each of a few alternatives begins, and one in their number."""
        mask = self._find_mask(matcher)
        if not 0 < _count(mask) <= _MOST_ALTERNATIVES:
            return [_NOT_KNOWN]
        token_ids = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        pieces = [self._tokenizer.decode_bytes([token_id]) for token_id in token_ids.tolist()]
        longest: dict[bytes, bytes] = {}
        for piece in sorted(pieces, key=len):
            longest[piece[:1]] = piece
        return [(longest[start], 1 / len(longest)) for start in sorted(longest)]

    def _find_mask(self, matcher: LLMatcher) -> Bits:
        """Returns what may come where the matcher stands, `[num_bytes]`; nothing if it fails."""
        if matcher.is_error() or matcher.is_stopped():
            return np.zeros_like(self._end_only)
        return np.frombuffer(matcher.compute_bitmask(), np.uint8)[: len(self._end_only)]


def _extend(
    parts: Sequence[tuple[bytes, float]], piece: bytes, chance: float, likely: float
) -> list[tuple[bytes, float]]:
    """Returns parts with one more piece, which is a part of its own if it is not sure."""
    text, before = parts[-1]
    if likely >= _SURE:
        return [*parts[:-1], (text + piece, before)]
    return [*(parts if text else parts[:-1]), (piece, chance * likely)]


def _count(mask: Bits) -> int:
    """Returns how many tokens a mask allows."""
    return int(np.bitwise_count(mask).sum(dtype=np.int64))
