"""A grammar that an output follows: what may come next, and after each draft."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from optimist_common.errors import one_line
from optimist_common.grammar import MAX_LEXER_STATES, find_problem, find_reason, make_matcher
from optimist_worker.core.form import FORCED_CHANCE, KNOWN_CHANCE, JsonText, Style

_STATES_PER_BYTE = 4
"""States of the lexer that each byte of output makes room for. Counting takes one for each."""
_FED_AT_ONCE = (512, 1)
"""Tokens between two masks of an output that is fed again: limits of a step are those between two
masks. What takes more for many tokens is fed once more, as an output without drafts comes."""
_PAUSE = 64
"""Tokens for which drafts are not looked at after they have led to a limit."""

_CUT_CHANCE = 0.6
"""That a value ends where a draft of it may not go on as its source does."""
_BESIDE = 0.5
"""How likely a value is to end where other drafts go on with it, of how likely it is elsewhere."""
_MOST_BETWEEN = 1024
"""Tokens that may come between values: where more may, the text is free."""
_MOST_ALTERNATIVES = 64
"""Tokens that begin the members of a closed set."""
_MOST_PIECES = 512
"""Pieces of text between values whose tokens are kept."""
_LEAST_LIKELY = 0.05
"""Chance below which nothing more is written ahead."""
_SURE = 0.9
"""Chance below which what comes next is a part of its own."""
_MOST_BYTES = 256
"""Of what is drafted between values."""

logger = logging.getLogger(__name__)

Bits = npt.NDArray[np.uint8]
"""Bit i of byte b for token 8 * b + i, `[..., num_bytes]`."""


class GrammarRow(NamedTuple):
    """The drafts of one slot in a pass."""

    slot: int
    token_ids: Sequence[int]
    parents: Sequence[int] | None = None
    """Index of each draft's parent, -1: the last known token; None: a chain."""


class FormDraft(NamedTuple):
    """A draft of a row whose output follows a grammar."""

    token_id: int
    parent: int
    """Index of its parent, -1: the last known token."""
    base: int
    """Which of the row's own drafts it is, -1 for none of them."""


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Returns what `Matcher` takes; raises ValueError if the grammar is wrong or too complex."""
    compiled = make_matcher(tokenizer, grammar, MAX_LEXER_STATES)
    problem = find_problem(compiled)
    if problem:
        raise ValueError(problem)
    return compiled


class Matcher:
    """Follows one output.

    llguidance makes the states of its lexer as they are needed, and keeps them: also those that
    only rejected drafts have led to. So its limit would be met at a token that depends on drafts,
    and by every output that is long enough. When it is met here, all states are dropped and the
    output is followed again, with room for more states the longer it is. Only what fails then has
    failed. That depends on the output alone: what a matcher with more states than needed can do, a
    new one with as much room can, too.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        grammar: str,
        compiled: LLMatcher,
        end_only: Bits,
        token_ids: Sequence[int] = (),
        style: Style | None = None,
    ) -> None:
        """Starts a grammar (llguidance's Lark), of which `compile_grammar` made `compiled`.

        `end_only` allows the end tokens, `[num_bytes]`; `token_ids` are the output so far, and a
        ValueError says that the grammar is not what it follows. The style of JSON is taken to be
        that of another output.
        """
        self.fault: str | None = None
        """Why the grammar can be followed no further, or None."""
        self._tokenizer, self._grammar, self._end_only = tokenizer, grammar, end_only
        self._tokenize = lru_cache(_MOST_PIECES)(tokenizer.tokenize_bytes)
        self._has_ended = False
        """Whether an end token has been committed; llguidance is never given one."""
        self._token_ids: list[int] = []
        self._num_passes = self._num_emitted = 0
        self._is_drafting = True
        self._guessed: int | None = None
        """The next token, where one was drafted between values."""
        self._after_value: tuple[int, bytes] | None = None
        """Which value what was last written ahead comes after, see `JsonText.num_closed`."""
        self._next: tuple[list[tuple[bytes, float]], bool] = [], False
        self._drafts_from = 0
        """Length of the output from which on drafts are looked at."""
        self._matcher = compiled.deep_copy()
        self._text = JsonText(Style() if style is None else style.copy())
        for token_id in token_ids:
            self._text.commit(tokenizer.decode_bytes([token_id]))
        if token_ids:
            end = next((i for i, token in enumerate(token_ids) if self._is_end(token)), None)
            self._token_ids, self._has_ended = list(token_ids[:end]), end is not None
            self._renew()
        if self.fault is not None:
            raise ValueError(self.fault)

    def commit(self, token_ids: Sequence[int]) -> None:
        """Moves on by emitted tokens; sets the fault if the grammar refuses one."""
        self._num_passes += 1
        self._num_emitted += len(token_ids)
        if self._guessed is not None and token_ids:
            self.style.learn_guess(was_right=token_ids[0] == self._guessed)
        for token_id in token_ids:
            if self._has_ended or self.fault is not None:
                return
            if self._is_end(token_id):
                self._has_ended = True
                self.style.end_token_id = token_id
                return
            self._token_ids.append(token_id)
            self._text.commit(self._tokenizer.decode_bytes([token_id]))
            if self._matcher.is_error() or not self._consume(token_id):
                self._renew()

    @property
    def style(self) -> Style:
        """How the output writes JSON."""
        return self._text.style

    def draft(self, row: GrammarRow, limit: int, least_chance: float) -> list[FormDraft]:
        """Returns a row's drafts as a tree of at most `limit` nodes, parents first.

        First come those that it has and the grammar allows; then what probably comes between
        values, where they end that the grammar has cut off, and at the top, where it may be a
        branch. Each token takes the time in which passes bring `least_chance` tokens. The grammar
        is not moved on.
        """
        self._guessed = None
        own = [FormDraft(token_id, node, i) for i, (token_id, node) in enumerate(_nodes(row))]
        may_draft = self._is_drafting and len(self._token_ids) >= self._drafts_from
        if not may_draft or self._has_ended or self.fault is not None or self._matcher.is_error():
            return own
        try:
            drafts = self._allow(own)
            is_chain = all(parent == node - 1 for _, parent, node in own)
            if is_chain and 0 < len(drafts) < len(own):
                self._go_on(drafts, [draft.token_id for draft in drafts], limit, least_chance)
            self._go_on(drafts, [], limit, least_chance)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # Such as a tokenizer that panics at a text. It costs drafts, and nothing else.
            logger.warning("a grammar drafts nothing for its request: %s", one_line(error))
            self._is_drafting = False
            self._renew()
            return own
        if not self._matcher.is_error():
            return drafts
        self._drafts_from = len(self._token_ids) + _PAUSE
        return own

    def _allow(self, own: Sequence[FormDraft]) -> list[FormDraft]:
        """Returns the drafts that the grammar allows."""
        indices, is_allowed = {-1: -1}, set[int]()
        for leaf in {*range(len(own))} - {parent for _, parent, _ in own}:
            path = [leaf]
            while (parent := own[path[-1]].parent) >= 0:
                path.append(parent)
            path.reverse()
            is_allowed.update(
                path[: self._matcher.validate_tokens([own[i].token_id for i in path])]
            )
        drafts: list[FormDraft] = []
        for token_id, parent, node in own:
            if node in is_allowed:
                indices[node] = len(drafts)
                drafts.append(FormDraft(token_id, indices[parent], node))
        return drafts

    def _go_on(
        self, drafts: list[FormDraft], path: list[int], limit: int, least_chance: float
    ) -> None:
        """Adds what probably comes after a path of drafts, if it is worth its time."""
        matcher, text = self._matcher, self._text.copy()
        text.feed(self._tokenizer.decode_bytes(path))
        ending, chance, after = b"", self.style.find_guess_chance(), None
        if is_in_value := text.is_in_value:
            chance = text.find_end_chance()
            if drafts:
                # Where its source goes on with what may not come, the value probably ends.
                chance = max(chance, _CUT_CHANCE) if path else chance * _BESIDE
            ending = text.end_value()
            after = None if path else (text.num_closed, ending)
        if chance <= least_chance or any(map(self._is_end, path)):
            return
        if after is None or after != self._after_value:
            # What comes after a value does not depend on what is in it.
            matcher.consume_tokens(path)
            self._next = self._write(text, ending)
            matcher.rollback(len(path))
            # It may not be able to end yet.
            self._after_value = after if self._next[0][0][0] else None
        new = self._choose(*self._next, chance, least_chance)
        new = new[: matcher.validate_tokens([*path, *new]) - len(path)]
        if new and not path and not is_in_value:
            self._guessed = new[0]
        _graft(drafts, path, new[: limit - len(drafts)])

    def _choose(
        self,
        parts: Sequence[tuple[bytes, float]],
        is_last: bool,
        chance: float,
        least_chance: float,
    ) -> list[int]:
        """Returns the tokens of as many parts as bring the most; a chance is of the first.

        See `_write`. A part that comes saves a pass, which brings what others have brought; its
        tokens would take their time a pass later as well. They are lost if it does not come.
        """
        worth = (self._num_emitted + 1) / (self._num_passes + 1)
        best: list[int] = []
        most, gained, text, before = 0.0, 0.0, b"", 0
        for left, (part, likely) in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
            text += part
            token_ids = self._tokenize(text)
            if is_last and not left and self.style.end_token_id is not None:
                token_ids = [*token_ids, self.style.end_token_id]
            comes = chance * likely
            gained += comes * worth - (1 - comes) * least_chance * (len(token_ids) - before)
            before = len(token_ids)
            if gained > most:
                best, most = token_ids, gained
        return best

    def _write(self, text: JsonText, piece: bytes) -> tuple[list[tuple[bytes, float]], bool]:
        """Returns what probably comes next, from a piece on, and whether the output ends with it.

        It is in parts, each with the chance that it comes with all before it if the first does.
        """
        matcher = self._matcher
        parts, num_consumed, size, chance = [(piece, 1.0)], 0, 0, 1.0
        while True:
            token_ids = self._tokenize(piece)
            number = matcher.try_consume_tokens(token_ids)
            num_consumed += number
            size += len(piece)
            if number < len(token_ids):
                parts[-1] = parts[-1][0].removesuffix(piece), parts[-1][1]
                break
            piece, likely = self._find_next(text)
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
        return parts, is_last

    def _find_next(self, text: JsonText) -> tuple[bytes, float]:
        """Returns what has to come where the matcher stands, or probably does; else nothing."""
        matcher = self._matcher
        forced = matcher.compute_ff_bytes()
        # Special tokens are written after this byte, which is in no text.
        if forced and 0xFF not in forced:
            return forced, FORCED_CHANCE
        if forced:
            return b"", 0.0
        if text.is_in_string:
            known = text.guess_value()
            return known if known and self._allows(known[0]) else self._find_alternative()
        allowed = [(piece, chance) for piece, chance in text.guess() if self._allows(piece)]
        if not allowed or (mask := self._find_mask()) is None or _count(mask) > _MOST_BETWEEN:
            return b"", 0.0
        return allowed[0] if len(allowed) > 1 else (allowed[0][0], KNOWN_CHANCE)

    def _allows(self, piece: bytes) -> bool:
        token_ids = self._tokenize(piece)
        return self._matcher.validate_tokens(token_ids) == len(token_ids)

    def _find_alternative(self) -> tuple[bytes, float]:
        """Returns how the first of a few alternatives begins, and one in their number."""
        mask = self._find_mask()
        if mask is None or not 0 < _count(mask) <= _MOST_ALTERNATIVES:
            return b"", 0.0
        token_ids = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        pieces = [self._tokenizer.decode_bytes([token_id]) for token_id in token_ids.tolist()]
        starts = {piece[:1] for piece in pieces}
        first = min(starts)
        return max((one for one in pieces if one[:1] == first), key=len), 1 / len(starts)

    def fill(self, row: GrammarRow, masks: Bits) -> None:
        """Works out what may come after the last known token and after each draft.

        Where that cannot be said nothing is allowed: after the last known token that is a fault.
        After a draft it decides nothing, as the draft is not accepted and comes without one. The
        masks are zeros, `[1 + num_drafts, num_bytes]`, and written.
        """
        root = self._find_mask()
        if root is None and self.fault is None:
            self._renew()
            root = self._find_mask()
            if root is None and self.fault is None:
                self.fault = find_reason(self._matcher)
        if root is None:
            return
        masks[0] = root
        if len(self._token_ids) >= self._drafts_from and not self._fill_drafts(row, masks):
            self._drafts_from = len(self._token_ids) + _PAUSE

    def _fill_drafts(self, row: GrammarRow, masks: Bits) -> bool:
        """Writes the masks after drafts; returns whether none has led to a limit."""
        parents = [parent for _, parent in _nodes(row)]
        # Number of tokens that lead the matcher to each draft that the grammar accepts.
        depths = {-1: 0}
        depth = 0
        for node in depth_first(parents):
            parent, token_id = parents[node], row.token_ids[node]
            if parent not in depths or not _has_bit(masks[1 + parent], token_id):
                continue
            if self._is_end(token_id):
                # Nothing but further ends can follow, which the matcher need not see.
                depths[node] = depths[parent]
                masks[1 + node] = self._end_only
                continue
            if depth > depths[parent]:
                self._matcher.rollback(depth - depths[parent])
            depth = depths[node] = depths[parent] + 1
            mask = self._find_mask() if self._consume(token_id) else None
            if mask is None:
                return False
            masks[1 + node] = mask
        if depth:
            self._matcher.rollback(depth)
        return True

    def _find_mask(self) -> Bits | None:
        """Returns what may come where the matcher stands, `[num_bytes]`, or None if it fails."""
        if self.fault is not None or self._matcher.is_error():
            return None
        if self._has_ended or self._matcher.is_stopped():
            return self._end_only
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        # There may be a word more than tokens need.
        return None if self._matcher.is_error() else mask[: len(self._end_only)]

    def _consume(self, token_id: int) -> bool:
        return not self._matcher.is_stopped() and self._matcher.consume_token(token_id)

    def _renew(self) -> None:
        """Follows the output with a new matcher; sets the fault if that fails as well."""
        del self._matcher
        num_bytes = len(self._tokenizer.decode_bytes(self._token_ids))
        most = MAX_LEXER_STATES + _STATES_PER_BYTE * num_bytes
        for number in _FED_AT_ONCE:
            self._matcher = matcher = make_matcher(self._tokenizer, self._grammar, most)
            for first in range(0, len(self._token_ids), number):
                matcher.compute_bitmask()
                matcher.consume_tokens(self._token_ids[first : first + number])
            if not matcher.is_error():
                return
        self.fault = f"the output cannot be followed: {find_reason(matcher)}"

    def _is_end(self, token_id: int) -> bool:
        return _has_bit(self._end_only, token_id)


def _has_bit(mask: Bits, token_id: int) -> bool:
    in_vocabulary = 0 <= token_id < 8 * len(mask)
    return in_vocabulary and bool(mask[token_id // 8] >> token_id % 8 & 1)


def _nodes(row: GrammarRow) -> list[tuple[int, int]]:
    """Returns the tokens and parents of a row's drafts."""
    parents = range(-1, len(row.token_ids) - 1) if row.parents is None else row.parents
    return list(zip(row.token_ids, parents, strict=True))


def _graft(drafts: list[FormDraft], path: Sequence[int], new: Sequence[int]) -> None:
    """Adds tokens after a path of drafts, but for those that are there already."""
    found = {(draft.parent, draft.token_id): index for index, draft in enumerate(drafts)}
    node = -1
    for token_id in (*path, *new):
        key = node, token_id
        if key not in found:
            found[key] = len(drafts)
            drafts.append(FormDraft(token_id, node, -1))
        node = found[key]


def _count(mask: Bits) -> int:
    """Returns how many tokens a mask allows."""
    return int(np.bitwise_count(mask).sum(dtype=np.int64))


def depth_first(parents: Sequence[int]) -> list[int]:
    """Orders nodes: each comes after its parent and before its parent's siblings.

    Parents are less than their children, -1 for those of the root; siblings keep their order.
    """
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent + 1].append(node)
    order: list[int] = []
    stack = children[0][::-1]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += children[node + 1][::-1]
    return order
