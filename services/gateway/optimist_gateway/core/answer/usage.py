"""The account of a request or of one of its answers, and what speculation was worth."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from optimist_common.drafts import DraftSource


@dataclass(frozen=True)
class Usage:
    """What was consumed and what the predictions were worth."""

    prompt_tokens: int
    completion_tokens: int
    """Tokens of the answer; rejected predicted tokens are no part of it."""
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int | None
    """None if unknown: the scheduler gives no account of a request that the gateway ends."""
    num_passes: int
    """Forward passes that emitted tokens."""
    num_tokens_by_source: Mapping[DraftSource, int] = field(default_factory=dict)
    """Tokens of the answer by where they came from, without zeros."""
    cached_prompt_tokens: int = 0
    """Tokens of the prompt that were in the prefix cache."""


def merge_usages(usages: Sequence[Usage]) -> Usage:
    """Returns the account of several answers to one prompt, which is counted once.

    Raises:
        ValueError: There is no answer, or the prompts are not the same.
    """
    if len({usage.prompt_tokens for usage in usages}) != 1:
        raise ValueError("the account of answers to one prompt needs one prompt")
    return replace(
        add_usages(usages),
        prompt_tokens=usages[0].prompt_tokens,
        # What one of them computed the others may have found in the cache.
        cached_prompt_tokens=min(usage.cached_prompt_tokens for usage in usages),
    )


def add_usages(usages: Sequence[Usage]) -> Usage:
    """Returns the account of answers to different prompts."""
    rejected = [usage.rejected_prediction_tokens for usage in usages]
    known = [count for count in rejected if count is not None]
    by_source: Counter[DraftSource] = Counter()
    for usage in usages:
        by_source.update(usage.num_tokens_by_source)
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        accepted_prediction_tokens=sum(usage.accepted_prediction_tokens for usage in usages),
        rejected_prediction_tokens=sum(known) if len(known) == len(rejected) else None,
        num_passes=sum(usage.num_passes for usage in usages),
        num_tokens_by_source={source: by_source[source] for source in sorted(by_source)},
        cached_prompt_tokens=sum(usage.cached_prompt_tokens for usage in usages),
    )


MAX_COUNTED = 64
"""Passes with more accepted drafts are counted with those that have as many."""


@dataclass(frozen=True)
class Speculation:
    """The forward passes of one or several answers."""

    num_passes: int = 0
    """Those that emitted tokens."""
    num_tokens: int = 0
    """Tokens that they emitted."""
    num_accepted_tokens: int = 0
    """How many of these were drafts."""
    num_drafted_tokens: int | None = 0
    """Drafts that were verified; None if the scheduler gave no account."""
    accepted_length_histogram: Sequence[int] = field(default_factory=list)
    """How many passes had 0, 1, 2, ... accepted drafts; at most `MAX_COUNTED` + 1 counts."""

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the drafts that was accepted; None if there were none or nobody knows."""
        drafted = self.num_drafted_tokens
        return self.num_accepted_tokens / drafted if drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens of a pass; None without any pass."""
        return self.num_tokens / self.num_passes if self.num_passes else None


def add_speculations(several: Sequence[Speculation]) -> Speculation:
    """Returns the sum."""
    drafted = [one.num_drafted_tokens for one in several]
    known = [count for count in drafted if count is not None]
    histograms = (one.accepted_length_histogram for one in several)
    return Speculation(
        num_passes=sum(one.num_passes for one in several),
        num_tokens=sum(one.num_tokens for one in several),
        num_accepted_tokens=sum(one.num_accepted_tokens for one in several),
        num_drafted_tokens=sum(known) if len(known) == len(drafted) else None,
        accepted_length_histogram=[sum(counts) for counts in zip_longest(*histograms, fillvalue=0)],
    )
