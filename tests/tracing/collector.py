"""A collector of OpenTelemetry spans, as a gRPC server in this process."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class CollectedSpan:
    """A span, and which service sent it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the first span of a trace."""
    attributes: dict[str, Any]
    events: list[str]
    is_error: bool
    start_ns: int
    end_ns: int


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps every span that is exported to it."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[CollectedSpan] = []
        self._news = threading.Condition()

    def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._news:
            for resource_spans in request.resource_spans:
                service = _attributes(resource_spans.resource.attributes)["service.name"]
                for scope_spans in resource_spans.scope_spans:
                    self.spans += [_span(service, span) for span in scope_spans.spans]
            self._news.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait(self, is_enough: Callable[[list[CollectedSpan]], bool]) -> list[CollectedSpan]:
        """Returns the spans once there are enough; raises AssertionError if there never are."""
        with self._news:
            assert self._news.wait_for(lambda: is_enough(self.spans), WAIT_SECONDS), self.spans
            return list(self.spans)


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Runs a collector on a free port."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(  # type: ignore[no-untyped-call]
        collector, server
    )
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


def _span(service: str, span: Span) -> CollectedSpan:
    return CollectedSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_attributes(span.attributes),
        events=[event.name for event in span.events],
        is_error=span.status.code == 2,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs if isinstance(pair, KeyValue)}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, str(kind))
