"""What is noted of a request while it is answered: for its span, its log line, its metrics."""

import logging
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Histogram

from optimist_common.observing.logs import log_context
from optimist_common.observing.tracing import Attributes, AttributeValue, Span, Tracer
from optimist_gateway.core.answer.output import Finished, Usage
from optimist_gateway.core.request import Request
from optimist_gateway.observing.metrics import GatewayMetrics

logger = logging.getLogger("optimist_gateway.access")

ABORTED = "abort"
"""Reason of a choice that was ended before its answer was."""
FAILED = "error"
"""Reason of a choice that the scheduler ended without a complete answer."""


@dataclass(slots=True)
class RequestRecord:
    """One request; never its texts, nor who asked."""

    operation: str = ""
    """What OpenTelemetry's conventions for generative AI call it; empty if it generates nothing."""
    span: Span | None = None
    model: str = ""
    """The model's name; empty until it is known that there is such a model."""
    outcome: str = ""
    """As in `optimist_gateway_requests`; empty until it is known."""
    error: str = ""
    """Code of the error that it was answered with."""
    usage: Usage | None = None
    reasons: list[str] = field(default_factory=list)
    """Why the choices ended."""
    first_token_seconds: float | None = None
    started: float = field(default_factory=time.perf_counter)

    @property
    def trace_parent(self) -> str:
        """What the scheduler's spans belong to; empty if there is no span."""
        return "" if self.span is None else self.span.trace_parent

    def begin(self, request_id: str, request: Request, client_name: str | None = None) -> None:
        """Notes which request it is; log lines are marked with its names from now on."""
        self.model = request.model
        fields = {"request_id": request_id}
        if client_name is not None:
            fields["client_request_id"] = client_name
        if self.span is not None:
            fields["trace_id"] = self.span.trace_id
            self.span.rename(f"{self.operation} {request.model}")
            self.span.set(_request_attributes(request_id, request))
            self.span.set({"gen_ai.operation.name": self.operation})
        log_context.set(fields)

    def note_first_token(self) -> None:
        """Notes the first token of any choice; later ones are not noted."""
        if self.first_token_seconds is None:
            self.first_token_seconds = time.perf_counter() - self.started
            if self.span is not None:
                self.span.event("first token")


_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def current_record() -> RequestRecord:
    """Returns the record of the request that is answered here; a new one if nobody keeps it."""
    return _current.get() or RequestRecord()


@dataclass(frozen=True)
class RequestObserver:
    """Begins and ends the records of requests; all APIs use it."""

    tracer: Tracer
    """Starts the spans."""
    access_log: bool
    """Whether requests are logged."""

    @property
    def is_on(self) -> bool:
        """Whether anything is written."""
        return self.access_log or self.tracer.is_on

    def begin(self, operation: str, attributes: Attributes, trace_parent: str) -> RequestRecord:
        """Returns the record of the request that this task answers, with a span if it is traced.

        The operation is as in `RequestRecord`; without one there is no span. The W3C traceparent is
        that of the request, or empty.
        """
        span = None
        if operation:
            known = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "optimist"}
            span = self.tracer.start(
                operation, {**known, **attributes}, trace_parent=trace_parent, kind="server"
            )
        record = RequestRecord(operation, span)
        _current.set(record)
        return record

    def end(
        self, record: RequestRecord, name: str, attributes: Attributes, *, failed: bool
    ) -> None:
        """Ends the span, with attributes that the API knows only now, and writes the line.

        The name is what was asked for, such as `POST /v1/completions`; `failed` is the server.
        """
        if record.span is not None:
            record.span.set({**_answer_attributes(record), **attributes})
            record.span.end(record.error or record.outcome if failed else "")
        if self.access_log:
            logger.info("%s", name, extra={"fields": _log_fields(record)})


def _request_attributes(request_id: str, request: Request) -> dict[str, AttributeValue]:
    return _known(
        {
            "gen_ai.response.id": request_id,
            "gen_ai.request.model": request.model,
            "gen_ai.response.model": request.model,
            "gen_ai.request.stream": request.stream,
            "gen_ai.request.choice.count": request.n,
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": request.sampling.temperature,
            "gen_ai.request.top_p": request.sampling.top_p,
            "gen_ai.request.seed": request.seed,
        }
    )


def _answer_attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    attributes = {
        "optimist.outcome": record.outcome,
        "error.type": record.error or None,
        "gen_ai.response.finish_reasons": record.reasons or None,
        "optimist.time_to_first_token": record.first_token_seconds,
    }
    if (usage := record.usage) is not None:
        attributes |= {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "optimist.usage.accepted_prediction_tokens": usage.accepted_prediction_tokens,
            "optimist.usage.rejected_prediction_tokens": usage.rejected_prediction_tokens or 0,
            "optimist.num_passes": usage.num_passes,
        }
    return _known(attributes)


def _log_fields(record: RequestRecord) -> dict[str, Any]:
    """Returns what the access log says; never the query, an address or a text."""
    first, usage = record.first_token_seconds, record.usage
    return _known(
        {
            "outcome": record.outcome,
            "seconds": round(time.perf_counter() - record.started, 4),
            "model": record.model or None,
            "error": record.error or None,
            "first_token_seconds": None if first is None else round(first, 4),
            "prompt_tokens": usage and usage.prompt_tokens,
            "completion_tokens": usage and usage.completion_tokens,
            "accepted_prediction_tokens": usage and usage.accepted_prediction_tokens,
        }
    )


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@dataclass(slots=True, eq=False)
class ChoiceTimes:
    """Counts the times of one choice and how it ended; `end` it, once or more often."""

    metrics: GatewayMetrics
    model: str
    """The model's name."""
    started: float
    """When the client's request was parsed, by `time.perf_counter`."""
    reason: str = ABORTED
    """Why it ends."""
    _record: RequestRecord = field(init=False, default_factory=current_record)
    _latency: Histogram = field(init=False)
    _first: float | None = field(init=False, default=None)
    _last: float = field(init=False, default=0.0)
    _ended: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.metrics.waiting.inc()
        # To find it takes longer than to observe.
        self._latency = self.metrics.inter_token_latency.labels(self.model)

    def note_tokens(self, num_tokens: int, now: float) -> None:
        """Takes note that a step has brought some tokens; `now` is by `time.perf_counter`."""
        if self._first is not None:
            self._latency.observe((now - self._last) / num_tokens)
        else:
            self._first = now
            self.metrics.waiting.dec()
            self.metrics.time_to_first_token.labels(self.model).observe(now - self.started)
            self._record.note_first_token()
        self._last = now

    def note_account(self, finished: Finished | None) -> None:
        """Takes note of the scheduler's account, if it is there and the choice got a slot."""
        if finished is not None and finished.queue_seconds > 0:
            self.metrics.queue.labels(self.model).observe(finished.queue_seconds)

    def end(self, num_tokens: int) -> None:
        """Counts what is known with the end of an answer of so many tokens."""
        if self._ended:
            return
        self._ended = True
        self.metrics.finished.labels(self.model, self.reason).inc()
        self._record.reasons.append(self.reason)
        if self._first is None:
            self.metrics.waiting.dec()
        elif num_tokens > 1:
            mean = (self._last - self._first) / (num_tokens - 1)
            self.metrics.time_per_output_token.labels(self.model).observe(mean)
