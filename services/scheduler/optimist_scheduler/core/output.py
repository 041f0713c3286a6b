"""What a request gets from a step."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    REFUSED = "refused"
    OVERLOADED = "overloaded"
    ERROR = "error"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request and its account."""

    reason: FinishReason
    message: str = ""
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    num_passes: int = 0


class Output(NamedTuple):
    """New tokens of one request, its end, or both."""

    request_id: str
    token_ids: list[int]
    num_accepted_tokens: int
    """How many of the tokens, from the front, were drafts."""
    finished: Finished | None = None


class RejectionError(Exception):
    """A request that cannot be added; the message names the field."""

    def __init__(self, reason: FinishReason, message: str) -> None:
        super().__init__(message)
        self.finished = Finished(reason, message)
