"""The account of one request, in the shape of the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optimist_common.draft_source import DraftSource


@dataclass(frozen=True)
class Usage:
    """What a request consumed and what its prediction was worth."""

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

    def to_api(self, *, with_num_passes: bool) -> dict[str, Any]:
        """Returns the `usage` object; `num_passes` is an extension for `return_token_ids`."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
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
