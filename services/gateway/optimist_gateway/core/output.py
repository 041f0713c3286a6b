"""What one step of the scheduler says about one request, as plain values."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class StepOutput:
    """New tokens of one request, its end, or both."""

    token_ids: list[int]
    num_accepted_tokens: int = 0
    """How many of the tokens, from the front, were predicted ones."""
    finished: Finished | None = None
