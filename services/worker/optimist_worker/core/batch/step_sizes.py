"""The sizes that steps are captured in: few, so that one captured step serves many."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

from optimist_worker.core.acceptance.sampling_table import Needs
from optimist_worker.core.batch.host_view import StepBounds
from optimist_worker.core.plan import MOST_WINDOW_NODES

_DRAFTS = (0, 15, 64, MOST_WINDOW_NODES)
_QUERIES = (1, 16, 65, 512)
"""A row with more than 65 tokens mostly has a part of a prompt; longer parts go by fours."""
_LEAST_KEYS = 2048
_SAMPLED = Needs(True, True, False, False, 0, False, False)
"""What most requests need; steps that choose greedily fit in as well."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Which size each step has on one worker."""

    max_num_batched_tokens: int
    widest_cut: int | None
    """Size of the vocabulary where cuts that no row has cost nothing: then all that choose by more
    than the largest logit are taken to have them. None where they cost something."""
    has_network: bool
    """Whether a network drafts, which runs once for every further draft, and is shown tokens."""

    def size_of(self, bounds: StepBounds) -> StepBounds:
        """Returns the least size that holds a step; a size is its own.

        The number of tokens is what a pass costs, see `_round_tokens`. What belongs to no token of
        a row and to none of its keys ends at once, so rows and keys go up by fours, keys from 2,048
        on. Windows, trees and lookups are launches of their own, which only steps with drafts have.
        Of bias there is no memory before a request has one.
        """
        num_tokens = self._round_within(bounds.num_tokens)
        num_drafts = bounds.max_num_drafts
        if self.has_network and num_drafts:
            num_drafts = power_up(num_drafts, 1)
        elif num_drafts <= _DRAFTS[-1]:
            num_drafts = _DRAFTS[bisect_left(_DRAFTS, num_drafts)]
        num_queries = _round_queries(max(bounds.max_num_queries, 1 + num_drafts))
        is_shown = self.has_network and bounds.uses_drafter
        return replace(
            bounds,
            num_rows=power_up(bounds.num_rows, 2),
            num_tokens=num_tokens,
            num_logits=min(power_up(bounds.num_logits, 1), num_tokens),
            max_num_queries=num_queries,
            max_num_keys=power_up(bounds.max_num_keys, 2, least=_LEAST_KEYS),
            max_num_drafts=num_drafts,
            uses_windows=bounds.uses_windows or num_drafts > 0,
            has_trees=bounds.has_trees and num_drafts > 0,
            max_unseen=max(num_queries, _round_queries(bounds.max_unseen)) if is_shown else 0,
            num_unseen=max(num_tokens, self._round_within(bounds.num_unseen)) if is_shown else 0,
            least_chance=0.0,
            max_drafter_tokens=None,
            num_form_tokens=0,
            needs=self._widen(bounds.needs),
        )

    def at_start(
        self, most_tokens: int, most_rows: int, *, has_drafter: bool
    ) -> Iterator[StepBounds]:
        """Goes through the sizes of usual steps of at most so many tokens and rows.

        The largest is the first, in whose memory the others fit; then rows of one token each, then
        rows that verify drafts. Other steps run in these, or are captured when they come.
        """
        most = min(most_tokens, self.max_num_batched_tokens)
        rows = [1]
        while rows[-1] < min(most_rows, most):
            rows.append(4 * rows[-1])
        drafters = (True, False) if has_drafter else (False,)
        yield self._usual(rows[-1], most, most, uses_drafter=has_drafter)
        for number in rows:
            yield self._usual(number, min(number, most), number, uses_drafter=False)
        for number in rows:
            num_tokens = max(16, 8 * number)
            while num_tokens <= min(most, 32 * number + _QUERIES[-1]):
                for uses in drafters:
                    for num_logits in (num_tokens, num_tokens // 2):
                        yield self._usual(number, num_tokens, num_logits, uses_drafter=uses)
                num_tokens = _round_tokens(num_tokens + 1)

    def _usual(
        self, num_rows: int, num_tokens: int, num_logits: int, *, uses_drafter: bool
    ) -> StepBounds:
        has_drafts = num_tokens > num_rows
        return self.size_of(
            StepBounds(
                num_rows=num_rows,
                num_tokens=num_tokens,
                num_logits=num_logits,
                max_num_queries=min(num_tokens, _QUERIES[-1]) if has_drafts else 1,
                max_num_keys=1,
                max_num_drafts=min(num_tokens - 1, 64) if has_drafts else 0,
                uses_windows=True,
                has_trees=has_drafts,
                uses_drafter=uses_drafter,
                max_unseen=0,
                num_unseen=0,
                has_grammar=False,
                has_minimum=False,
                needs=_SAMPLED,
            )
        )

    def _round_within(self, number: int) -> int:
        return min(_round_tokens(number), max(self.max_num_batched_tokens, number))

    def _widen(self, needs: Needs) -> Needs:
        if self.widest_cut is not None:
            return needs.widened(self.widest_cut)
        return needs._replace(cut_width=power_up(needs.cut_width, 1) if needs.cut_width else 0)


_COMPARED = (
    *("num_rows", "num_tokens", "num_logits", "max_num_queries", "max_num_keys", "max_num_drafts"),
    *("uses_windows", "has_trees", "max_unseen", "num_unseen", "has_grammar", "has_minimum"),
)


def holds(size: StepBounds, step: StepBounds) -> bool:
    """Returns whether a step may run in a size: no bound is less, and the same drafters run.

    A drafter that was not to draft in the step would cost more than is saved.
    """
    if size.uses_drafter != step.uses_drafter or (size.max_num_drafts > 0) != (
        step.max_num_drafts > 0
    ):
        return False
    return all(getattr(size, name) >= getattr(step, name) for name in _COMPARED) and all(
        mine >= its for mine, its in zip(size.needs, step.needs, strict=True)
    )


def power_up(number: int, bits: int, least: int = 1) -> int:
    """Returns the next of the numbers `least` times a power of two to the `bits`."""
    steps = -(-(-(-number // least) - 1).bit_length() // bits)
    return least << (steps * bits)


def _round_queries(number: int) -> int:
    if number <= _QUERIES[-1]:
        return _QUERIES[bisect_left(_QUERIES, number)]
    return power_up(number, 2, least=_QUERIES[-1])


def _round_tokens(number: int) -> int:
    """Returns the next power of two up to 64, where weights are the bound, or part of one beyond.

    There every token costs: halves of the way to the next power up to 512, then quarters.
    """
    power = power_up(number, 1)
    step = power // (1 if power <= 64 else 4 if power <= 512 else 8)
    return -(-number // step) * step
