"""What one step of the scheduler says about one request, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from optimist_common.drafts import DraftSource


class FinishReason(Enum):
    """The scheduler's reasons, and the stop string that only the gateway knows."""

    STOP = "stop"
    LENGTH = "length"
    STOP_STRING = "stop_string"
    REFUSED = "refused"
    OVERLOADED = "overloaded"
    ERROR = "error"
    ABORTED = "aborted"

    @property
    def is_failure(self) -> bool:
        """Returns whether the request has no complete answer."""
        return self in (
            FinishReason.REFUSED,
            FinishReason.OVERLOADED,
            FinishReason.ERROR,
            FinishReason.ABORTED,
        )

    @property
    def api_name(self) -> str:
        """The value of `finish_reason` in an answer; only for reasons that are no failure."""
        return "length" if self is FinishReason.LENGTH else "stop"


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
    num_drafted_tokens: int = 0
    """Drafts that were verified, accepted or not, trees with all their nodes."""
    queue_seconds: float = 0.0
    """Time for which the request waited for a slot."""
    num_cached_tokens: int = 0
    """Tokens of the prompt that were in the prefix cache."""
    is_whole: bool = True
    """Whether the account is of the whole request; not of one whose first tokens came from
    another scheduler."""


@dataclass(frozen=True)
class TokenLogprobs:
    """How likely one token was, and which would have been the likeliest at its position."""

    logprob: float
    """Natural logarithm of the model's probability of the token."""
    candidate_token_ids: list[int]
    """The likeliest tokens, the likeliest first, `[num_candidates]`."""
    candidate_logprobs: list[float]
    """Of these, `[num_candidates]`."""


@dataclass(frozen=True)
class StepLogprobs:
    """What one step says of how likely tokens of one request were."""

    first_prompt_position: int
    """Position in the prompt of the first of `prompt`; the others follow it."""
    prompt: list[TokenLogprobs]
    """Of tokens of the prompt, each once and in order, the first token of it never."""
    tokens: list[TokenLogprobs]
    """One for each new token of the step; empty if only those of the prompt are wanted."""


@dataclass(slots=True)
class StepOutput:
    """New tokens of one request, log-probabilities of its prompt, its end, or several of these.

    It is not changed once it is made: a frozen one would take several times as long to make.
    """

    token_ids: list[int]
    num_accepted_tokens: int = 0
    """How many of the tokens, from the front, were drafts."""
    draft_source: DraftSource = DraftSource.TARGET
    """Where these drafts came from."""
    finished: Finished | None = None
    logprobs: StepLogprobs | None = None
    """For requests that want some; without any new token if it is of the prompt alone."""
    prediction_positions: list[int] | None = None
    """For requests that want them: where each accepted draft is in all predictions, one after
    the other; -1 for what was read from none of them, `[num_accepted_tokens]`."""
    prompt_positions: list[int] | None = None
    """With these: where each accepted draft is in the prompt, counted from its end (1 for its
    last token); 0 for what was not read from it, `[num_accepted_tokens]`. None if none was."""
    received: float = 0.0
    """When it arrived, by `time.perf_counter`."""
