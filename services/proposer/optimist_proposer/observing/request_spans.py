"""A span for each traced request while it is followed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimist_common.observing.tracing import OFF, Span, Tracer
from optimist_proposer.core.live_requests import LiveRequest
from optimist_proposer.core.messages import Answer, Observation, Open


@dataclass(slots=True)
class _Traced:
    span: Span
    num_batches: int = 0
    num_observed_tokens: int = 0
    num_windows: int = 0
    num_gaps: int = 0


class RequestSpans:
    """The spans of the traced requests that are followed, a bounded number of them."""

    def __init__(self, tracer: Tracer = OFF, max_spans: int = 4096) -> None:
        """Traces nothing yet.

        Args:
            tracer: Starts the spans.
            max_spans: Beyond as many the oldest is ended: a scheduler may be gone.
        """
        self._tracer, self._max_spans = tracer, max_spans
        self._traced: dict[str, _Traced] = {}

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
            },
            trace_parent=request.trace_parent,
            kind="server",
        )
        if span is None:
            return
        self._traced[request.request_id] = _Traced(span)
        if len(self._traced) > self._max_spans:
            self.end(next(iter(self._traced)))

    def note(self, grouped: Mapping[str, Sequence[Observation]], answer: Answer) -> None:
        """Adds a batch of observations and its answer; ends the spans of what was refused."""
        if not self._traced:
            return
        for request_id, observations in grouped.items():
            if (traced := self._traced.get(request_id)) is not None:
                traced.num_batches += 1
                traced.num_observed_tokens += sum(len(one.token_ids) for one in observations)
        for request_id in answer.windows:
            if (traced := self._traced.get(request_id)) is not None:
                traced.num_windows += 1
        for request_id in answer.gaps:
            if (traced := self._traced.get(request_id)) is not None:
                traced.num_gaps += 1
        for request_id, reason in answer.refusals.items():
            self.end(request_id, reason)

    def end(self, request_id: str, reason: str = "", live: LiveRequest | None = None) -> None:
        """Ends a span, if there is one.

        Args:
            request_id: Of the request.
            reason: Why it is not followed any more although it goes on.
            live: The request, if it is still here.
        """
        traced = self._traced.pop(request_id, None)
        if traced is None:
            return
        traced.span.set(
            {
                "optimist.num_batches": traced.num_batches,
                "optimist.num_observed_tokens": traced.num_observed_tokens,
                "optimist.num_windows": traced.num_windows,
                "optimist.num_gaps": traced.num_gaps,
            }
        )
        if live is not None:
            traced.span.set({"optimist.cpu_seconds": live.spent_seconds})
        traced.span.end(reason)
