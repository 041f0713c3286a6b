"""What an output that follows a grammar probably writes next, as drafts.

Where a value may end, all up to the next one; values that are copied from the prompt. All in bytes,
then split by the tokenizer: between values tokens join their neighbours.
"""

from collections.abc import Sequence
from typing import NamedTuple

from llguidance import LLMatcher, LLTokenizer

from optimist_worker.core.copies import Copies, Piece
from optimist_worker.core.form import Chance, JsonText, Style, read_style
from optimist_worker.grammar.between import Between, BetweenWriter
from optimist_worker.grammar.draft_tree import Bits, DraftTree, FormDraft, has_bit

_CUT_CHANCE = 0.6
"""That a value ends where a draft of it may not go on as its source does."""
_BESIDE = 0.5
"""How likely a value is to end where other drafts go on with it, of how likely it is elsewhere."""
_NEXT_PLACE = 0.45
"""How likely a value is to be at each further place, of how likely it is at the one before."""
_DIGIT_CHANCE = 0.06
"""That a certain digit comes where one may, before it is learned."""
_LEAST_MESSAGE, _MOST_MESSAGE = 8, 2**14
"""Tokens of a message of the prompt: those around it in a template are fewer; and at most."""
_LEAST_LIKELY = 0.05
"""Chance below which nothing is written after a value that is still to begin."""
_MOST_PLACES = _MOST_ENDS = 3
"""Places of a value that are drafted from, and ends of it at each."""


class _Value(NamedTuple):
    """A value of the prompt, or what is left of it, that ends where something comes after it."""

    text: bytes
    chance: float
    """That it is written, and ends there."""
    place: int
    """Where it ends in the prompt."""


class _Beginning(NamedTuple):
    """What is drafted up to where a value may begin."""

    text: bytes
    token_ids: list[int]
    chance: float
    digit_place: bytes | None
    """See `JsonText.digit_place`."""
    last: int | None = None
    """Where the copy before ends in the prompt, if that is drafted as well."""


class FormDrafter:
    """Drafts for one output."""

    def __init__(
        self, tokenizer: LLTokenizer, end_only: Bits, style: Style, prompt: Sequence[int] = ()
    ) -> None:
        """Begins before the output; `end_only` has the end tokens, `[num_bytes]`.

        The style of JSON is taken to be that of the prompt, token ids, or of another output.
        Values may be copied from the prompt.
        """
        self._tokenizer, self._end_only = tokenizer, end_only
        self._writer = BetweenWriter(tokenizer, end_only)
        self.style = style = style.copy()
        first = len(prompt) - _find_message(tokenizer, prompt)
        before, message = map(tokenizer.decode_bytes, (list(prompt[:first]), list(prompt[first:])))
        text = before + message
        self._prompt_style = read_style(text)
        if self._prompt_style is not None and style.follows_prompt.value > 1 / 2:
            style.follow(self._prompt_style)
        self._copies = Copies(text, style, len(message))
        self._text = JsonText(style, self._copies)
        self._num_passes = self._num_emitted = 0
        self._guessed: int | None = None
        """The next token, where one was drafted between values."""
        self._after_value: tuple[int, bytes] | None = None
        """Which value what was last written ahead comes after, see `JsonText.num_closed`."""
        self._between: list[Between] = []
        split = [(digit, self._writer.tokenize(bytes([digit]))) for digit in b"0123456789"]
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
            if (read := self._prompt_style) is not None:
                self.style.follows_prompt.learn(was_right=self.style.is_like(read))
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
        here = _Beginning(b"", [], 1.0, self._text.digit_place)
        if self._text.begins_value:
            self._begin(tree, here)
        if not self._copies.is_copied:
            self._add_digits(tree, here)
        return tree.drafts

    def _go_on(self, tree: DraftTree, path: list[int]) -> None:
        """Adds what probably comes after a path of drafts, if it is worth its time."""
        if any(map(self._is_end, path)):
            return
        text = self._text.after(self._tokenizer.decode_bytes(path))
        chance, between = self.style.guesses.value, list[Between]()
        is_known = not text.is_in_value
        if (is_known or text.is_in_key) and chance > tree.least_chance:
            between = self._writer.write(tree.matcher, path, text, b"")
            # A key that is not known ends as values do.
            is_known = is_known or bool(between)
        if not is_known:
            is_copied = not path and self._copies.is_copied
            chance = self._copies.end_chance if is_copied else text.find_end_chance()
            if tree.drafts:
                # Where its source goes on with what may not come, the value probably ends.
                chance = max(chance, _CUT_CHANCE) if path else chance * _BESIDE
            between = self._end_value(tree, path, text) if chance > tree.least_chance else []
        for number, one in enumerate(between):
            new = self._add(tree, path, _Value(b"", chance, -1), one)
            if new and not (path or number) and is_known and one.parts[0][1] == 1.0:
                self._guessed = new[0]
        if not path and self._text.is_in_value:
            self._copy(tree)

    def _end_value(self, tree: DraftTree, path: list[int], text: JsonText) -> list[Between]:
        """Returns what comes if the value ends after a path of drafts."""
        ending = text.end_value()
        if path:
            return self._writer.write(tree.matcher, path, text, ending)
        after = text.num_closed, ending
        if after != self._after_value:
            # What comes after a value does not depend on what is in it.
            self._between = self._writer.write(tree.matcher, path, text, ending)
            # It may not be able to end yet.
            self._after_value = after if self._between else None
        return self._between

    def _copy(self, tree: DraftTree) -> None:
        """Adds what a value may copy from the prompt, and what comes where it may end there."""
        here = _Beginning(b"", [], 1.0, None)
        between: list[Between] = []
        for rank, place in enumerate(self._copies.places[:_MOST_PLACES]):
            pieces = self._copies.go_on(place, _NEXT_PLACE**rank)
            self._add_words(tree, here, pieces)
            for value in _find_ends(place, pieces)[:_MOST_ENDS]:
                if value.chance > tree.least_chance:
                    between = between or self._end_value(tree, [], self._text.copy())
                    for one in between:
                        self._add(tree, [], value, one)

    def _add(self, tree: DraftTree, path: list[int], value: _Value, between: Between) -> list[int]:
        """Adds what comes between values after a path and a value; returns its tokens."""
        if value.chance <= tree.least_chance:
            return []
        parts = [(part, value.chance * likely) for part, likely in between.parts]
        parts[0] = value.text + parts[0][0], parts[0][1]
        num_there = len(self._writer.tokenize(value.text)) if value.text else 0
        new, size = self._choose(tree, parts, num_there, is_last=between.is_last)
        num_valid = tree.add(path, new)
        if between.begins_value and size == len(parts) and num_valid == len(new) and not path:
            written = b"".join(part for part, _ in parts)
            last = value.place if value.text else None
            beginning = _Beginning(written, new, parts[-1][1], between.digit_place, last)
            self._begin(tree, beginning)
            self._add_digits(tree, beginning)
        return new[:num_valid]

    def _begin(self, tree: DraftTree, here: _Beginning) -> None:
        """Adds how a value may begin, and what comes after the likeliest of those that end."""
        values: list[_Value] = []
        is_number = here.digit_place == b"value"
        for start, likely in self._copies.starts(here.last, is_number=is_number):
            if self._is_worth(tree, here.chance * likely):
                pieces = self._copies.go_on(start, here.chance * likely, begins=True)
                self._add_words(tree, here, pieces)
                values += _find_ends(start, pieces)
        value = max(values, key=lambda one: one.chance, default=None)
        if value is None or value.chance <= max(tree.least_chance, _LEAST_LIKELY):
            return
        value = value._replace(text=here.text + value.text)
        path = self._writer.tokenize(value.text)
        if tree.matcher.validate_tokens(path) == len(path):
            for one in self._end_value(tree, path, self._text.after(value.text)):
                self._add(tree, [], value, one)

    def _add_digits(self, tree: DraftTree, here: _Beginning) -> None:
        """Adds the digits that are likely enough to come next, where one may."""
        place = here.digit_place
        if place is None or tree.has_own:
            return
        for token_id, digit in self._digits:
            if self._is_worth(tree, here.chance * self._digit(place, digit).value):
                tree.add(here.token_ids, [token_id])

    def _digit(self, place: bytes, digit: int) -> Chance:
        return self.style.chance(place, digit, _DIGIT_CHANCE)

    def _add_words(self, tree: DraftTree, here: _Beginning, pieces: Sequence[Piece]) -> None:
        """Adds as many words of a value as are worth it."""
        if not pieces or not self._is_worth(tree, pieces[0].chance):
            return
        parts = [(piece.text, piece.chance) for piece in pieces]
        parts[0] = here.text + parts[0][0], parts[0][1]
        before = len(here.token_ids)
        new, _ = self._choose(tree, parts, before, is_last=False)
        if new[:before] == here.token_ids:
            tree.add([], new)

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
            token_ids = self._writer.tokenize(text)
            if is_last and number == len(parts) and self.style.end_token_id is not None:
                token_ids = [*token_ids, self.style.end_token_id]
            gained += comes * worth - (1 - comes) * tree.least_chance * (len(token_ids) - before)
            before = len(token_ids)
            if gained > most:
                best, size, most = token_ids, number, gained
        return best, size

    def _is_end(self, token_id: int) -> bool:
        return has_bit(self._end_only, token_id)


def _find_message(tokenizer: LLTokenizer, prompt: Sequence[int]) -> int:
    """Returns how many of a prompt's tokens are its last message and what comes after that.

    Templates write special tokens around messages; without any it is the whole prompt.
    """
    size = 0
    for number, token_id in enumerate(reversed(prompt[-_MOST_MESSAGE:])):
        if not tokenizer.is_special_token(token_id):
            size += 1
        elif size >= _LEAST_MESSAGE:
            return number
        else:
            size = 0
    return len(prompt)


def _find_ends(place: int, pieces: Sequence[Piece]) -> list[_Value]:
    """Returns where a value that goes on from a place may end, the likeliest first."""
    values: list[_Value] = []
    text = b""
    for piece in pieces:
        text += piece.text
        values.append(_Value(text, piece.end_chance, place + len(text)))
    return sorted(values, key=lambda one: one.chance, reverse=True)
