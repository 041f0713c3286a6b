"""A grammar that an output follows: what may come next, and after each draft."""

import logging
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from optimist_common.errors import one_line
from optimist_common.grammar import MAX_LEXER_STATES, find_problem, find_reason, make_matcher
from optimist_worker.core.form import Style
from optimist_worker.grammar.draft_tree import Bits, FormDraft, GrammarRow, has_bit
from optimist_worker.grammar.form_drafter import FormDrafter

_STATES_PER_BYTE = 4
"""States of the lexer that each byte of output makes room for. Counting takes one for each."""
_FED_AT_ONCE = (512, 1)
"""Tokens between two masks of an output that is fed again: limits of a step are those between two
masks. What takes more for many tokens is fed once more, as an output without drafts comes."""
_PAUSE = 64
"""Tokens for which drafts are not looked at after they have led to a limit."""

logger = logging.getLogger(__name__)


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
        prompt: Sequence[int] = (),
    ) -> None:
        """Starts a grammar (llguidance's Lark), of which `compile_grammar` made `compiled`.

        `end_only` allows the end tokens, `[num_bytes]`; `token_ids` are the output so far, and a
        ValueError says that the grammar is not what it follows. Style and prompt are for drafts,
        see `FormDrafter`.
        """
        self.fault: str | None = None
        """Why the grammar can be followed no further, or None."""
        self._tokenizer, self._grammar, self._end_only = tokenizer, grammar, end_only
        self._has_ended = False
        """Whether an end token has been committed; llguidance is never given one."""
        self._token_ids: list[int] = []
        self._is_drafting = True
        self._drafts_from = 0
        """Length of the output from which on drafts are looked at."""
        self._matcher = compiled.deep_copy()
        self._form = FormDrafter(tokenizer, end_only, style or Style(), prompt)
        if token_ids:
            self._form.follow(token_ids)
            end = self._find_end(token_ids)
            self._token_ids, self._has_ended = list(token_ids[:end]), end is not None
            self._renew()
        if self.fault is not None:
            raise ValueError(self.fault)

    def commit(self, token_ids: Sequence[int]) -> None:
        """Moves on by emitted tokens; sets the fault if the grammar refuses one."""
        end = self._find_end(token_ids)
        self._form.commit(token_ids[:end], None if end is None else token_ids[end])
        for token_id in token_ids[:end]:
            if self._has_ended or self.fault is not None:
                return
            self._token_ids.append(token_id)
            if self._matcher.is_error() or not self._consume(token_id):
                self._renew()
        self._has_ended = self._has_ended or end is not None

    @property
    def style(self) -> Style:
        """How the output writes JSON."""
        return self._form.style

    def draft(self, row: GrammarRow, limit: int, least_chance: float) -> list[FormDraft]:
        """Returns what `FormDrafter.draft` does, or only the row's drafts where nothing is."""
        own = [FormDraft(token_id, node, i) for i, (token_id, node) in enumerate(row.nodes())]
        may_draft = self._is_drafting and len(self._token_ids) >= self._drafts_from
        if not may_draft or self._has_ended or self.fault is not None or self._matcher.is_error():
            return own
        try:
            drafts = self._form.draft(self._matcher, own, limit, least_chance)
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
        parents = [parent for _, parent in row.nodes()]
        # Number of tokens that lead the matcher to each draft that the grammar accepts.
        depths = {-1: 0}
        depth = 0
        for node in depth_first(parents):
            parent, token_id = parents[node], row.token_ids[node]
            if parent not in depths or not has_bit(masks[1 + parent], token_id):
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
        return has_bit(self._end_only, token_id)

    def _find_end(self, token_ids: Sequence[int]) -> int | None:
        return next((i for i, token_id in enumerate(token_ids) if self._is_end(token_id)), None)


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
