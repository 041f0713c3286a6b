"""A span for each traced request while it is followed."""

from collections.abc import Mapping, Sequence

from optimist_common.observing.tracing import OFF, Span, Tracer
from optimist_proposer.core.live_requests import LiveRequest
from optimist_proposer.core.messages import Answer, Observation, Open

_BATCHES, _TOKENS = "optimist.num_batches", "optimist.num_observed_tokens"
_WINDOWS, _GAPS = "optimist.num_windows", "optimist.num_gaps"


class RequestSpans:
    """The spans of the traced requests that are followed, a bounded number of them."""

    def __init__(self, tracer: Tracer = OFF, max_spans: int = 4096) -> None:
        """Traces nothing yet.

        Args:
            tracer: Starts the spans.
            max_spans: Beyond as many the oldest is ended: a scheduler may be gone.
        """
        self._tracer, self._max_spans = tracer, max_spans
        self._spans: dict[str, Span] = {}

    def open(self, request: Open) -> None:
        """Begins the span of a request that is opened, if it is traced."""
        if not request.trace_parent:
            return
        self.end(request.request_id)
        span = self._tracer.start(
            "proposer request",
            {
                "optimist.request_id": request.request_id,
                "optimist.num_predictions": len(request.predictions),
                "optimist.num_predicted_tokens": sum(map(len, request.predictions)),
                **dict.fromkeys((_BATCHES, _TOKENS, _WINDOWS, _GAPS), 0),
            },
            trace_parent=request.trace_parent,
            kind="server",
        )
        if span is None:
            return
        self._spans[request.request_id] = span
        if len(self._spans) > self._max_spans:
            self.end(next(iter(self._spans)))

    def note(self, grouped: Mapping[str, Sequence[Observation]], answer: Answer) -> None:
        """Adds a batch of observations and its answer; ends the spans of what was refused."""
        if not self._spans:
            return
        for request_id in self._spans.keys() & {*grouped, *answer.windows, *answer.gaps}:
            observations = grouped.get(request_id, ())
            self._spans[request_id].add(
                {
                    _BATCHES: request_id in grouped,
                    _TOKENS: sum(len(one.token_ids) for one in observations),
                    _WINDOWS: request_id in answer.windows,
                    _GAPS: request_id in answer.gaps,
                }
            )
        for request_id, reason in answer.refusals.items():
            self.end(request_id, reason)

    def end(self, request_id: str, reason: str = "", live: LiveRequest | None = None) -> None:
        """Ends a span, if there is one.

        Args:
            request_id: Of the request.
            reason: Why it is not followed any more although it goes on.
            live: The request, if it is still here.
        """
        if (span := self._spans.pop(request_id, None)) is not None:
            if live is not None:
                span.set({"optimist.cpu_seconds": live.spent_seconds})
            span.end(reason)
