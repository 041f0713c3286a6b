"""The times of one choice, measured as its tokens arrive."""

from optimist_gateway.core.answer.output import Finished
from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.observing.request_record import current_record

ABORTED = "abort"
"""Reason of a choice that was ended before its answer was."""
FAILED = "error"
"""Reason of a choice that the scheduler ended without a complete answer."""


class ChoiceTimes:
    """Counts the times of one choice and how it ended; `end` it, once or more often."""

    __slots__ = (
        "_ended",
        "_first",
        "_inter_token_latency",
        "_last",
        "_metrics",
        "_reason",
        "_record",
        "_started",
    )

    def __init__(self, metrics: GatewayMetrics, started: float) -> None:
        """Begins to wait for the first token.

        Args:
            metrics: Where to count.
            started: When the client's request was parsed, by `time.perf_counter`.
        """
        self._metrics, self._started = metrics, started
        self._inter_token_latency = metrics.inter_token_latency
        self._record = current_record()
        self._first: float | None = None
        self._last = 0.0
        self._ended = False
        self._reason = ABORTED
        metrics.waiting.inc()

    def note_tokens(self, num_tokens: int, now: float) -> None:
        """Takes note that a step has brought some tokens; `now` is by `time.perf_counter`."""
        if self._first is not None:
            latency = (now - self._last) / num_tokens
            self._inter_token_latency.observe(latency, num_tokens)
        else:
            self._first = now
            self._metrics.waiting.dec()
            self._metrics.time_to_first_token.observe(now - self._started)
            self._record.note_first_token()
        self._last = now

    def note_account(self, finished: Finished | None) -> None:
        """Takes note of the scheduler's account, if it is there and the choice got a slot."""
        if finished is not None and finished.queue_seconds > 0:
            self._metrics.queue.observe(finished.queue_seconds)

    def note_reason(self, reason: str) -> None:
        """Takes note of why it ends."""
        self._reason = reason

    def end(self, num_tokens: int) -> None:
        """Counts what is known with the end of an answer of so many tokens."""
        if self._ended:
            return
        self._ended = True
        self._metrics.finished.labels(self._reason).inc()
        self._record.reasons.append(self._reason)
        if self._first is None:
            self._metrics.waiting.dec()
        elif num_tokens > 1:
            mean = (self._last - self._first) / (num_tokens - 1)
            self._metrics.time_per_output_token.observe(mean)
