"""Spans of requests, exported by OTLP; without an endpoint OpenTelemetry is not imported."""

import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from optimist_common.errors import SetupError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan

AttributeValue = str | bool | int | float | Sequence[str] | Sequence[int]
Attributes = Mapping[str, AttributeValue]
Kind = Literal["server", "internal"]

EXPORT_SECONDS = 2
"""How long the collector may take for a batch, and how long the end of the process waits for it."""
MAX_WAITING_SPANS = 2048
"""Ended spans that wait to be exported; more are dropped."""


class Span:
    """A span that is recorded; end it once."""

    def __init__(self, span: "OtelSpan") -> None:
        self._span = span
        context = span.get_span_context()
        self.trace_parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
        """What its children get: the traceparent of W3C Trace Context."""
        self._sums = Counter[str]()
        self._end_ns: int | None = None

    @property
    def trace_id(self) -> str:
        """The trace, 32 hexadecimal digits."""
        return self.trace_parent[3:35]

    def rename(self, name: str) -> None:
        """Gives it another name."""
        self._span.update_name(name)

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""
        self._span.set_attributes(attributes)

    def add(self, sums: Mapping[str, float], end_ns: int | None = None) -> None:
        """Adds to attributes that are sums, by their names.

        The span ends at `end_ns` if nothing else is said; None for when it is ended.
        """
        self._sums.update(sums)
        self._end_ns = end_ns

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Notes that something happened now."""
        self._span.add_event(name, attributes)

    def end(self, error: str = "", end_ns: int | None = None) -> None:
        """Ends it, as a failure if an error is given; `end_ns` is in nanoseconds since 1970."""
        from opentelemetry.trace import StatusCode

        self.set(self._sums)
        if error:
            self._span.set_status(StatusCode.ERROR, error)
        self._span.end(end_ns or self._end_ns)


class Tracer:
    """Starts spans, or none at all if there is no endpoint."""

    def __init__(self, service: str, endpoint: str, sample_ratio: float = 1.0) -> None:
        """Sets up the export, which goes on in a thread; nothing ever waits for it.

        Args:
            service: The service's name, such as `gateway`.
            endpoint: `http(s)://host:port` of a collector's OTLP/gRPC; empty for no spans.
            sample_ratio: Share of traces that are recorded, of those that begin here.

        Raises:
            SetupError: OpenTelemetry is not installed.
        """
        self._provider: TracerProvider | None = None
        self._exporter: OTLPSpanExporter | None = None
        if endpoint:
            self._provider, self._exporter = _build_provider(service, endpoint, sample_ratio)
        self._tracer = self._provider.get_tracer("optimist") if self._provider else None

    @property
    def is_on(self) -> bool:
        """Whether there is an endpoint."""
        return self._tracer is not None

    def start(
        self,
        name: str,
        attributes: Attributes,
        *,
        trace_parent: str = "",
        kind: Kind = "internal",
        start_ns: int | None = None,
    ) -> Span | None:
        """Starts a span; None if it is not recorded.

        Its parent is a W3C traceparent; it begins a trace if that is none. A server's answers
        another service. It began at `start_ns`, in nanoseconds since 1970; None for now.
        """
        if self._tracer is None:
            return None
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            name,
            context=_context(trace_parent),
            kind=SpanKind.SERVER if kind == "server" else SpanKind.INTERNAL,
            attributes=attributes,
            start_time=start_ns,
        )
        return Span(span) if span.is_recording() else None

    def close(self) -> None:
        """Exports what has ended, waiting EXPORT_SECONDS at most; call it off the event loop."""
        if self._provider is None or self._exporter is None:
            return
        # A collector that is away could hold the end up for longer: a batch at a time.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(EXPORT_SECONDS)
        # What waits between two tries ends now.
        self._exporter.shutdown()
        ending.join(EXPORT_SECONDS)


OFF = Tracer("", "")
"""Starts no spans."""


def _context(trace_parent: str) -> "Context":
    """Reads a traceparent; one that is none is ignored, as the standard wants."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": trace_parent}, Context())


def _build_provider(
    service: str, endpoint: str, sample_ratio: float
) -> "tuple[TracerProvider, OTLPSpanExporter]":
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError:
        raise SetupError(
            "--otlp-endpoint: OpenTelemetry is not installed; pip install 'optimist[otel]'"
        ) from None
    # A collector that is away is not worth a line for each batch.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
        resource=Resource.create(
            {"service.namespace": "optimist", "service.name": f"optimist-{service}"}
        ),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=MAX_WAITING_SPANS, schedule_delay_millis=1000)
    )
    return provider, exporter
