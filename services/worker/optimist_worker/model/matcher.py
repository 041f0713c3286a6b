"""A grammar that an output follows: what may come next, and after each draft."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from optimist_common.grammar import MAX_LEXER_STATES, find_problem, find_reason, make_matcher

_STATES_PER_BYTE = 4
"""States of the lexer that each byte of output makes room for. Counting takes one for each."""
_FED_AT_ONCE = (512, 1)
"""Tokens between two masks of an output that is fed again: limits of a step are those between two
masks. What takes more for many tokens is fed once more, as an output without drafts comes."""
_PAUSE = 64
"""Tokens for which drafts are not looked at after they have led to a limit."""

Bits = npt.NDArray[np.uint8]
"""Bit i of byte b for token 8 * b + i, `[..., num_bytes]`."""


class GrammarRow(NamedTuple):
    """The drafts of one slot in a pass."""

    slot: int
    token_ids: Sequence[int]
    parents: Sequence[int] | None = None
    """Index of each draft's parent, -1: the last known token; None: a chain."""


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
    ) -> None:
        """Starts a grammar (llguidance's Lark), of which `compile_grammar` made `compiled`.

        `end_only` allows the end tokens, `[num_bytes]`; `token_ids` are the output so far, and a
        ValueError says that the grammar is not what it follows.
        """
        self.fault: str | None = None
        """Why the grammar can be followed no further, or None."""
        self._tokenizer, self._grammar, self._end_only = tokenizer, grammar, end_only
        self._has_ended = False
        """Whether an end token has been committed; llguidance is never given one."""
        self._token_ids: list[int] = []
        self._drafts_from = 0
        """Length of the output from which on drafts are looked at."""
        self._matcher = compiled.deep_copy()
        if token_ids:
            end = next((i for i, token in enumerate(token_ids) if self._is_end(token)), None)
            self._token_ids, self._has_ended = list(token_ids[:end]), end is not None
            self._renew()
        if self.fault is not None:
            raise ValueError(self.fault)

    def commit(self, token_ids: Sequence[int]) -> None:
        """Moves on by emitted tokens; sets the fault if the grammar refuses one."""
        for token_id in token_ids:
            if self._has_ended or self.fault is not None:
                return
            if self._is_end(token_id):
                self._has_ended = True
                return
            self._token_ids.append(token_id)
            if self._matcher.is_error() or not self._consume(token_id):
                self._renew()

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
        parents = range(-1, len(row.token_ids) - 1) if row.parents is None else row.parents
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
