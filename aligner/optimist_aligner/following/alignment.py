"""Where in what it repeats the output stands, and what it says in place of what stands there."""

from typing import Final, NamedTuple

from optimist_aligner.following.agreement import choose_longest
from optimist_aligner.following.rule import Rule, Rules
from optimist_aligner.model.layout import NUM_RUNS, run_bucket
from optimist_aligner.text.context_index import MOST_ORDER, ContextIndex

SURE_RUN: Final = 3
"""So many tokens as predicted, and the offset counts as right."""
CERTAIN_RUN: Final = 16
"""With so many, nothing else has to be looked at, unless it was left further on before."""
_CERTAIN_AHEAD: Final = 64
"""So many offsets further on."""
MOST_RETURNS: Final = 3
"""Times that the output came back to an offset and left it again that count."""
_NEAR: Final = 6
"""A single token is looked for so far after the offset of the loss."""
_BEHIND: Final = 64
_AHEAD: Final = 256
"""Two tokens are believed so far from there."""
_MOST_AMBIGUOUS: Final = 24
"""Offsets after the same tokens that are compared."""
_MOST_HUNK: Final = 12
"""Tokens of the output between a loss and the next offset that may make a rule."""
_FIRST_TOKENS: Final = 8
"""With fewer the rate of losses says nothing."""


class Pending(NamedTuple):
    """A rule whose replacement the output has begun to say."""

    rule: Rule
    num_said: int
    resume: int
    """Where the prediction goes on after what is replaced."""


class Alignment:
    """The cursor in what is repeated: the predictions, or the prompt; a fold over the output.

    Attributes:
        offset: Where the next token is predicted.
        run: Tokens in a row that were as predicted.
        lost_at: Where it was last sure and then lost; `offset` while it is sure.
        num_lost: Tokens since then; 0 while it is sure.
        pending: What is being said in place of the prediction.
        rules: What was said in place of it.
        left: How often the output said something else at an offset where it was sure, by offset.
        num_searches: How often the offset was searched for.
    """

    def __init__(
        self, text: list[int], num_aligned: int, context_start: int, index: ContextIndex
    ) -> None:
        """Starts at the first token.

        Args:
            text: What the output is appended to.
            num_aligned: Offsets of it that the cursor walks through.
            context_start: Where the text begins that the output goes on.
            index: Of the text.
        """
        self._text, self._num_aligned, self._index = text, num_aligned, index
        self._start, self._context_start = len(text), context_start
        self.offset = self.run = self.lost_at = self.num_lost = 0
        self.pending: Pending | None = None
        self.rules = Rules()
        self.left: dict[int, int] = {}
        self.num_searches = 0
        self._num_losses = self._last_run = self._run_before = 0
        self._hunk_start = self._hunk_offset = 0

    @property
    def is_found(self) -> bool:
        """Whether a token is predicted next."""
        return self.run > 0 and self.offset < self._num_aligned

    @property
    def is_certain(self) -> bool:
        """Whether the output goes on as predicted for so long that nothing else is looked at."""
        if self.run < CERTAIN_RUN:
            return False
        end = self.offset + _CERTAIN_AHEAD
        return not any(
            self.offset <= offset < end and times > 1 for offset, times in self.left.items()
        )

    def count_returns(self, offset: int) -> int:
        """Returns how often the output came back to an offset and left it again.

        That is what an output in a loop does; who only quotes something leaves it once.
        """
        return min(max(self.left.get(offset, 0) - 1, 0), MOST_RETURNS)

    @property
    def rate(self) -> int:
        """The bucket of the number of tokens per loss."""
        num_tokens = len(self._text) - self._start
        if num_tokens < _FIRST_TOKENS:
            return 0
        return max(1, run_bucket(num_tokens // (self._num_losses + 1)))

    @property
    def runs(self) -> int:
        """The bucket of the length of the last runs; the highest before the first loss."""
        if not self._num_losses:
            return NUM_RUNS - 1
        return run_bucket(self._last_run + min(self._run_before, 4 * self._last_run))

    def advance(self, token_id: int) -> None:
        """Takes the token that was just appended to the text."""
        if self.pending is not None:
            self._go_on_replacing(self.pending, token_id)
        elif self.offset < self._num_aligned and self._text[self.offset] == token_id:
            for rule in self.rules.find(self._text, self.offset):
                rule.num_passed += 1
            is_back = self.num_lost > 0 and not self.run
            if not self.num_lost:
                self.left.pop(self.offset, None)
            self.offset += 1
            self._count()
            if is_back:
                self._learn(self.offset)
        else:
            self._diverge(token_id)

    def count_following(self, token_ids: list[int]) -> int:
        """Returns how many tokens go on as predicted, have no rule and were never left.

        There are none while a rule is pending.
        """
        if self.pending is not None:
            return 0
        end = min(self.offset + len(token_ids), self._num_aligned)
        count = 0
        for token_id, expected in zip(token_ids, self._text[self.offset : end], strict=False):
            if token_id != expected or token_id in self.rules.by_token:
                break
            if self.offset + count in self.left:
                break
            count += 1
        return count

    def follow(self, num_tokens: int) -> None:
        """Takes tokens that `count_following` has counted."""
        self.offset += num_tokens
        self.run += num_tokens
        self.lost_at, self.num_lost = self.offset, 0

    def _count(self) -> None:
        self.run += 1
        if self.run >= SURE_RUN:
            self.lost_at, self.num_lost = self.offset, 0
        elif self.num_lost:
            self.num_lost += 1

    def _go_on_replacing(self, pending: Pending, token_id: int) -> None:
        rule, num_said, resume = pending
        if self._text[rule.offset + num_said] != token_id:
            rule.num_passed += 1
            self.pending = None
            self._lose(num_said + 1)
            self._search(token_id)
            return
        self.run += 1
        num_said += 1
        if num_said < rule.length:
            self.pending = Pending(rule, num_said, resume)
        else:
            self._replace(rule, resume)

    def _replace(self, rule: Rule, resume: int) -> None:
        rule.num_sightings += 1
        self.pending = None
        self.offset = self.lost_at = resume
        self.num_lost = 0

    def _diverge(self, token_id: int) -> None:
        if self.run and not self.num_lost:
            rule = self._find_rule(token_id)
            if rule is not None:
                self.run += 1
                resume = self.offset + len(rule.replaced)
                if rule.length == 1:
                    self._replace(rule, resume)
                else:
                    self.pending = Pending(rule, 1, resume)
                return
            self._run_before, self._last_run = self._last_run, self.run
            if self.offset < self._num_aligned:
                self.left[self.offset] = self.left.get(self.offset, 0) + 1
            self._lose(1)
        else:
            self.run = 0
            self.num_lost += 1
        self._search(token_id)

    def _find_rule(self, token_id: int) -> Rule | None:
        if self.offset >= self._num_aligned:
            return None
        for rule in self.rules.find(self._text, self.offset):
            if self._text[rule.offset] == token_id:
                return rule
        return None

    def _lose(self, num_tokens: int) -> None:
        """Notes that the last tokens are not what is predicted at `offset`."""
        self._num_losses += 1
        self.run, self.num_lost, self.lost_at = 0, 1, self.offset
        self._hunk_start, self._hunk_offset = self.offset, len(self._text) - num_tokens

    def _search(self, token_id: int) -> None:
        """Goes to the offset that the last tokens speak for, or back to where it was lost."""
        self.num_searches += 1
        offset = self._find_offset(token_id)
        if not 0 <= offset < self._num_aligned:
            self.offset = self.lost_at
            return
        self.offset, self.run = offset, 1
        if self._num_losses and offset >= self._hunk_start:
            self._learn(offset)

    def _find_offset(self, token_id: int) -> int:
        text, num_tokens = self._text, len(self._text) - self._context_start
        for order in range(min(MOST_ORDER, num_tokens), 1, -1):
            offsets = self._index.find(tuple(text[-order:]))
            near = offsets.nearest(self.lost_at, _MOST_AMBIGUOUS)
            predicted = [offset for offset in near if offset < self._num_aligned]
            if not predicted:
                continue
            (offset,) = choose_longest(text, predicted, num_tokens, self.lost_at, 1)
            if order > 2 or -_BEHIND <= offset - self.lost_at <= _AHEAD:
                return offset
        end = min(self.lost_at + _NEAR, self._num_aligned)
        for offset in range(self.lost_at, end):
            if text[offset] == token_id:
                return offset + 1
        return -1

    def _learn(self, offset: int) -> None:
        """Learns what was said between the last loss and an offset found again."""
        text, end, same = self._text, len(self._text), 0
        while (
            same <= SURE_RUN
            and offset - same > self._hunk_start
            and end - same > self._hunk_offset
            and text[offset - same - 1] == text[end - same - 1]
        ):
            same += 1
        if same and end - self._hunk_offset <= _MOST_HUNK:
            self.rules.learn(text, self._hunk_start, offset - same, self._hunk_offset, end - same)
