"""Why a request ended."""

from enum import Enum


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
        """Tells whether the request has no complete answer."""
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
