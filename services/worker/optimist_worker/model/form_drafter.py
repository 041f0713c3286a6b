"""What an output that follows a grammar probably writes next, as drafts.

What is forced; white space as before; where a value may end, all up to the next one; the first of a
closed set; values that are copied from the prompt. All in bytes, then split by the tokenizer:
between values tokens join their neighbours.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from optimist_worker.core.copies import Copies, Piece
from optimist_worker.core.form import FORCED_CHANCE, KNOWN_CHANCE, Chance, JsonText, Style
from optimist_worker.model.draft_tree import Bits, DraftTree, FormDraft, has_bit

_CUT_CHANCE = 0.6
"""That a value ends where a draft of it may not go on as its source does."""
_BESIDE = 0.5
"""How likely a value is to end where other drafts go on with it, of how likely it is elsewhere."""
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
_MOST_BYTES = 256
"""Of what is drafted between values."""
_NEXT_PLACE = 0.3
"""How likely a value is to be at each further place, of how likely it is at the one before."""
_DIGIT_CHANCE = 0.06
"""That a certain digit comes where one may, before it is learned."""
_MOST_PLACES = _MOST_ENDS = 3
"""Places of a value that are drafted from, and ends of it at each."""


class _Between(NamedTuple):
    """What probably comes between two values, from the end of the first one on."""

    parts: list[tuple[bytes, float]]
    """Each with the chance that it comes with all before it if the first does."""
    is_last: bool
    """Whether the output ends with it."""
    begins_value: bool
    """Whether a value begins after it that may be copied."""
    digit_place: bytes | None
    """See `JsonText.digit_place`."""


@lru_cache(_MOST_PIECES)
def _tokenize(tokenizer: LLTokenizer, piece: bytes) -> Sequence[int]:
    return tuple(tokenizer.tokenize_bytes(piece))


class FormDrafter:
    """Drafts for one output."""

    def __init__(
        self, tokenizer: LLTokenizer, end_only: Bits, style: Style, prompt: Sequence[int] = ()
    ) -> None:
        """Begins before the output; `end_only` has the end tokens, `[num_bytes]`.

        The style of JSON is taken to be that of another output. Values may be copied from the
        prompt, token ids.
        """
        self._tokenizer, self._end_only = tokenizer, end_only
        self.style = style = style.copy()
        self._copies = Copies(tokenizer.decode_bytes(list(prompt)), style)
        self._text = JsonText(style, self._copies)
        self._num_passes = self._num_emitted = 0
        self._guessed: int | None = None
        """The next token, where one was drafted between values."""
        self._after_value: tuple[int, bytes] | None = None
        """Which value what was last written ahead comes after, see `JsonText.num_closed`."""
        self._between = _Between([], is_last=False, begins_value=False, digit_place=None)
        split = [(digit, self._tokenize(bytes([digit]))) for digit in b"0123456789"]
        self._digits = [(token_ids[0], digit) for digit, token_ids in split if len(token_ids) == 1]

    def follow(self, token_ids: Sequence[int]) -> None:
        """Goes on by tokens that are there already."""
        for token_id in token_ids:
            if (place := self._text.digit_place) is not None:
                for one, digit in self._digits:
                    self._digit(place, digit).learn(was_right=one == token_id)
            self._text.commit(self._tokenizer.decode_bytes([token_id]))

    def commit(self, token_ids: Sequence[int], end: int | None) -> None:
        """Goes on by the tokens of a pass, and the token that has ended the output."""
        self._num_passes += 1
        self._num_emitted += len(token_ids) + (end is not None)
        first = next(iter(token_ids), end)
        if self._guessed is not None and first is not None:
            self.style.guesses.learn(was_right=first == self._guessed)
            self._guessed = None
        if end is not None:
            self.style.end_token_id = end
        self.follow(token_ids)

    def draft(
        self, matcher: LLMatcher, own: Sequence[FormDraft], limit: int, least_chance: float
    ) -> list[FormDraft]:
        """Returns drafts as a tree of at most `limit` nodes, parents first.

        First come a row's own that the grammar allows; then what probably comes between
        values, where they end that the grammar has cut off, and at the top, where it may be a
        branch; then what a value may copy. Each token takes the time in which passes bring
        `least_chance` tokens. The matcher stands at the end of the output, and stays there.
        """
        tree = DraftTree(matcher, own, limit, least_chance)
        is_chain = all(parent == node - 1 for _, parent, node in own)
        if is_chain and 0 < len(tree.drafts) < len(own):
            self._go_on(tree, [draft.token_id for draft in tree.drafts])
        self._go_on(tree, [])
        if self._text.begins_value:
            self._begin(tree, b"", [], 1.0)
        if not self._copies.places:
            self._add_digits(tree, self._text.digit_place, [], 1.0)
        return tree.drafts

    def _go_on(self, tree: DraftTree, path: list[int]) -> None:
        """Adds what probably comes after a path of drafts, if it is worth its time."""
        if any(map(self._is_end, path)):
            return
        text = self._text.copy()
        text.feed(self._tokenizer.decode_bytes(path))
        if not text.is_in_value:
            chance = self.style.guesses.value
            between = (
                self._write(tree.matcher, path, text, b"") if chance > tree.least_chance else None
            )
        else:
            chance = text.find_end_chance()
            if tree.drafts:
                # Where its source goes on with what may not come, the value probably ends.
                chance = max(chance, _CUT_CHANCE) if path else chance * _BESIDE
            between = self._end_value(tree, path, text) if chance > tree.least_chance else None
        if between is not None:
            new = self._add(tree, path, b"", between, chance)
            if new and not path and not self._text.is_in_value:
                self._guessed = new[0]
        if not path and self._text.is_in_value:
            self._copy(tree)

    def _end_value(self, tree: DraftTree, path: list[int], text: JsonText) -> _Between:
        """Returns what comes if the value ends after a path of drafts."""
        ending = text.end_value()
        after = None if path else (text.num_closed, ending)
        if after is None or after != self._after_value:
            # What comes after a value does not depend on what is in it.
            self._between = self._write(tree.matcher, path, text, ending)
            # It may not be able to end yet.
            self._after_value = after if self._between.parts[0][0] else None
        return self._between

    def _copy(self, tree: DraftTree) -> None:
        """Adds what a value may copy from the prompt, and what comes where it may end there."""
        between = None
        for rank, place in enumerate(self._copies.places[:_MOST_PLACES]):
            pieces = self._copies.go_on(place, _NEXT_PLACE**rank)
            self._add_words(tree, b"", [], pieces)
            texts = list(accumulate(piece.text for piece in pieces))
            ends = sorted(
                zip(texts, pieces, strict=True), key=lambda one: one[1].end_chance, reverse=True
            )
            for text, piece in ends[:_MOST_ENDS]:
                if piece.end_chance > tree.least_chance:
                    between = between or self._end_value(tree, [], self._text.copy())
                    self._add(tree, [], text, between, piece.end_chance)

    def _add(
        self,
        tree: DraftTree,
        path: list[int],
        text: bytes,
        between: _Between,
        chance: float,
    ) -> list[int]:
        """Adds what comes between values after a path and a text; returns its tokens."""
        if chance <= tree.least_chance or not between.parts[0][0] + text:
            return []
        (first, _), *rest = between.parts
        parts = [(text + first, chance), *((part, chance * likely) for part, likely in rest)]
        num_there = len(self._tokenize(text)) if text else 0
        new, size = self._choose(tree, parts, num_there, is_last=between.is_last)
        num_valid = tree.add(path, new)
        if between.begins_value and size == len(parts) and num_valid == len(new) and not path:
            written = b"".join(part for part, _ in parts)
            self._begin(tree, written, new, parts[-1][1])
            self._add_digits(tree, between.digit_place, new, parts[-1][1])
        return new[:num_valid]

    def _begin(
        self,
        tree: DraftTree,
        written: bytes,
        before: list[int],
        chance: float,
    ) -> None:
        """Adds how a value may begin after what is `written`, in tokens `before`."""
        for start, likely in self._copies.starts():
            if self._is_worth(tree, chance * likely):
                pieces = self._copies.go_on(start, chance * likely, begins=True)
                self._add_words(tree, written, before, pieces)

    def _add_digits(
        self,
        tree: DraftTree,
        place: bytes | None,
        before: list[int],
        chance: float,
    ) -> None:
        """Adds the digits that are likely enough to come next, where one may."""
        if place is None or tree.has_own:
            return
        for token_id, digit in self._digits:
            if self._is_worth(tree, chance * self._digit(place, digit).value):
                tree.add(before, [token_id])

    def _digit(self, place: bytes, digit: int) -> Chance:
        return self.style.chance(place, digit, _DIGIT_CHANCE)

    def _add_words(
        self,
        tree: DraftTree,
        written: bytes,
        before: list[int],
        pieces: Sequence[Piece],
    ) -> None:
        """Adds as many words as are worth it after a text that is `before` in tokens."""
        if not pieces or not self._is_worth(tree, pieces[0].chance):
            return
        parts = [(piece.text, piece.chance) for piece in pieces]
        parts[0] = written + parts[0][0], parts[0][1]
        new, _ = self._choose(tree, parts, len(before), is_last=False)
        if new[: len(before)] == before:
            tree.add([], new)

    def _tokenize(self, piece: bytes) -> list[int]:
        return list(_tokenize(self._tokenizer, piece))

    def _is_worth(self, tree: DraftTree, chance: float) -> bool:
        return chance * self._rate > (1 - chance) * tree.least_chance

    @property
    def _rate(self) -> float:
        return (self._num_emitted + 1) / (self._num_passes + 1)

    def _choose(
        self,
        tree: DraftTree,
        parts: Sequence[tuple[bytes, float]],
        before: int,
        *,
        is_last: bool,
    ) -> tuple[list[int], int]:
        """Returns the tokens of as many parts as bring the most, and the number of parts.

        A part that comes saves a pass, which brings what others have brought; its tokens would
        take their time a pass later as well. They are lost if it does not come. So many tokens
        `before` are there already.
        """
        worth = self._rate
        best, size = list[int](), 0
        most, gained, text = 0.0, 0.0, b""
        for number, (part, comes) in enumerate(parts, 1):
            text += part
            token_ids = self._tokenize(text)
            if is_last and number == len(parts) and self.style.end_token_id is not None:
                token_ids = [*token_ids, self.style.end_token_id]
            gained += comes * worth - (1 - comes) * tree.least_chance * (len(token_ids) - before)
            before = len(token_ids)
            if gained > most:
                best, size, most = token_ids, number, gained
        return best, size

    def _write(self, matcher: LLMatcher, path: list[int], text: JsonText, piece: bytes) -> _Between:
        """Returns what probably comes after a path of drafts, from a piece on."""
        matcher.consume_tokens(path)
        parts, num_consumed, size, chance = [(piece, 1.0)], len(path), 0, 1.0
        while True:
            token_ids = self._tokenize(piece)
            number = matcher.try_consume_tokens(token_ids)
            num_consumed += number
            size += len(piece)
            if number < len(token_ids):
                parts[-1] = parts[-1][0].removesuffix(piece), parts[-1][1]
                break
            piece, likely = self._find_next(matcher, text)
            if not piece or chance * likely < _LEAST_LIKELY or size > _MOST_BYTES:
                break
            chance *= likely
            text.feed(piece)
            if likely < _SURE:
                parts.append((piece, chance))
            else:
                parts[-1] = parts[-1][0] + piece, parts[-1][1]
        is_last = matcher.is_stopped()
        if num_consumed:
            matcher.rollback(num_consumed)
        return _Between(parts, is_last, text.begins_value, text.digit_place)

    def _find_next(self, matcher: LLMatcher, text: JsonText) -> tuple[bytes, float]:
        """Returns what has to come where the matcher stands, or probably does; else nothing."""
        forced = matcher.compute_ff_bytes()
        # Special tokens are written after this byte, which is in no text.
        if forced and 0xFF not in forced:
            return forced, FORCED_CHANCE
        if forced:
            return b"", 0.0
        if text.is_in_string:
            known = text.guess_value()
            if known and self._allows(matcher, known[0]):
                return known
            return self._find_alternative(matcher)
        allowed = [one for one in text.guess() if self._allows(matcher, one[0])]
        if not allowed or not 0 < _count(self._find_mask(matcher)) <= _MOST_BETWEEN:
            return b"", 0.0
        return allowed[0] if len(allowed) > 1 else (allowed[0][0], KNOWN_CHANCE)

    def _allows(self, matcher: LLMatcher, piece: bytes) -> bool:
        token_ids = self._tokenize(piece)
        return matcher.validate_tokens(token_ids) == len(token_ids)

    def _find_alternative(self, matcher: LLMatcher) -> tuple[bytes, float]:
        """Returns how the first of a few alternatives begins, and one in their number."""
        mask = self._find_mask(matcher)
        if not 0 < _count(mask) <= _MOST_ALTERNATIVES:
            return b"", 0.0
        token_ids = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        pieces = [self._tokenizer.decode_bytes([token_id]) for token_id in token_ids.tolist()]
        starts = {piece[:1] for piece in pieces}
        first = min(starts)
        return max((one for one in pieces if one[:1] == first), key=len), 1 / len(starts)

    def _find_mask(self, matcher: LLMatcher) -> Bits:
        """Returns what may come where the matcher stands, `[num_bytes]`; nothing if it fails."""
        if matcher.is_error() or matcher.is_stopped():
            return np.zeros_like(self._end_only)
        return np.frombuffer(matcher.compute_bitmask(), np.uint8)[: len(self._end_only)]

    def _is_end(self, token_id: int) -> bool:
        return has_bit(self._end_only, token_id)


def _count(mask: Bits) -> int:
    """Returns how many tokens a mask allows."""
    return int(np.bitwise_count(mask).sum(dtype=np.int64))
