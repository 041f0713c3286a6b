"""What a batch asks, how large that may be, and what is answered."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from optimist_aligner.text.vocabulary import Vocabulary
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


class Observation(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one request; each is the setting of its name."""

    max_predictions: int
    max_prediction_tokens: int
    max_prediction_lines: int
    max_prediction_bytes: int
    max_alignment_ms: int


class LimitCheck:
    """Says which bound a request exceeds."""

    def __init__(self, limits: Limits, vocabulary: Vocabulary) -> None:
        self.limits = limits
        texts = vocabulary.token_texts
        self._num_bytes = np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts])
        self._ends_line = np.zeros(len(texts), np.bool_)
        self._ends_line[list(vocabulary.newline_token_ids)] = True

    def fault(self, predictions: Sequence["array[int]"], prompt: "array[int]") -> str | None:
        """Returns what is too large about an opening, naming its field, or None."""
        limits = self.limits
        field = "predicted_token_ids"
        num_tokens = sum(map(len, predictions))
        if len(predictions) > limits.max_predictions:
            return (
                f"num_predicted_tokens: {len(predictions)} predictions, more than "
                f"max_predictions ({limits.max_predictions})"
            )
        if num_tokens > limits.max_prediction_tokens:
            return (
                f"{field}: {num_tokens} tokens, more than max_prediction_tokens "
                f"({limits.max_prediction_tokens})"
            )
        if not self.knows([*predictions, prompt]):
            named = [*((field, one) for one in predictions), ("prompt_token_ids", prompt)]
            for name, column in named:
                if (unknown := self.unknown_token(column)) is not None:
                    return f"{name}: token {unknown} is not in the vocabulary of the tokenizer"
        columns = [np.frombuffer(one, np.intc) for one in predictions]
        num_bytes = sum(int(self._num_bytes.take(column).sum()) for column in columns)
        if num_bytes > limits.max_prediction_bytes:
            return (
                f"{field}: {num_bytes} bytes of text, more than max_prediction_bytes "
                f"({limits.max_prediction_bytes})"
            )
        num_lines = sum(int(np.count_nonzero(self._ends_line.take(column))) for column in columns)
        if num_lines > limits.max_prediction_lines:
            return (
                f"{field}: {num_lines} lines, more than max_prediction_lines "
                f"({limits.max_prediction_lines})"
            )
        return None

    def knows(self, columns: "Iterable[array[int]]") -> bool:
        """Returns whether the vocabulary has all tokens of some columns: soon, for a batch."""
        # Negative numbers are large without their sign.
        token_ids = np.frombuffer(b"".join(columns), np.uintc)
        return int(token_ids.max(initial=0)) < len(self._num_bytes)

    def unknown_token(self, token_ids: "array[int]") -> int | None:
        """Returns a token that the vocabulary lacks, or None."""
        if not token_ids:
            return None
        low, high = min(token_ids), max(token_ids)
        if low < 0:
            return low
        return high if high >= len(self._num_bytes) else None

    def delay(self, spent_seconds: float, num_known: int) -> str | None:
        """Returns that a request used up its time, or None.

        Each thousand of its output tokens has as much CPU time as the start has.
        """
        spent_ms = spent_seconds * 1000
        limit = self.limits.max_alignment_ms
        if spent_ms <= limit * (1 + num_known / 1000):
            return None
        return (
            f"predicted_token_ids: {spent_ms:.0f} ms were spent on following for {num_known} "
            f"tokens, more than max_alignment_ms ({limit}) at first and for each 1000 tokens"
        )
