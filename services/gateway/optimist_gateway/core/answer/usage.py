"""The account of a request or of one of its answers, in the shape of the API."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optimist_common.draft_source import DraftSource


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

    def to_api(self, *, with_num_passes: bool) -> dict[str, Any]:
        """Returns the `usage` object; `num_passes` is an extension for `return_token_ids`."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": self.cached_prompt_tokens,
                "audio_tokens": 0,
            },
            "completion_tokens_details": {
                "accepted_prediction_tokens": self.accepted_prediction_tokens,
                "rejected_prediction_tokens": self.rejected_prediction_tokens,
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "tokens_by_source": {
                    source.label: count for source, count in self.num_tokens_by_source.items()
                },
            },
        }
        if with_num_passes:
            usage["num_passes"] = self.num_passes
        return usage


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
