"""What a batch asks and what is answered, as plain values."""

from array import array
from dataclasses import dataclass, field

from optimist_proposer.core.live_requests import SentWindow

UNKNOWN = -1
"""Number of known tokens of a request that is not known at all."""


@dataclass(frozen=True, slots=True)
class Open:
    """A request to follow."""

    request_id: str
    predictions: "list[array[int]]"
    prompt: "array[int]"
    """The end of the prompt."""
    tenant: str
    trace_parent: str = ""
    """W3C traceparent of the request's span; empty if it is not traced."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Verified output tokens of a request from an output position on."""

    request_id: str
    position: int
    token_ids: "array[int]"


@dataclass(slots=True)
class Answer:
    """What a batch brought about, by request id."""

    windows: dict[str, SentWindow] = field(default_factory=dict)
    gaps: dict[str, int] = field(default_factory=dict)
    """Known tokens of the requests whose observations begin after them; UNKNOWN."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Why requests are not followed."""

    def refuse(self, request_id: str, reason: str) -> None:
        """Refuses a request; nothing else is said of it."""
        self.refusals[request_id] = reason
        self.windows.pop(request_id, None)
        self.gaps.pop(request_id, None)
