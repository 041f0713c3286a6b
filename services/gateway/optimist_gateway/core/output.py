"""What one step of the scheduler says about one request, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from optimist_common.draft_source import DraftSource
from optimist_gateway.core.finish import FinishReason


@dataclass(frozen=True)
class Finished:
    """The end of a request and its account."""

    reason: FinishReason
    message: str = ""
    """What went wrong; for failures only."""
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    num_passes: int = 0
    """Forward passes that emitted tokens of the request."""
    num_tokens_by_source: Mapping[DraftSource, int] = field(default_factory=dict)
    """Tokens of the request by where they came from, without zeros."""


@dataclass(frozen=True)
class StepOutput:
    """New tokens of one request, its end, or both."""

    token_ids: list[int]
    num_accepted_tokens: int = 0
    """How many of the tokens, from the front, were drafts."""
    draft_source: DraftSource = DraftSource.TARGET
    """Where these drafts came from."""
    finished: Finished | None = None
