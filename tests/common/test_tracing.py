"""Spans arrive with their parents, and a collector that is away harms nothing."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from optimist_common.errors import SetupError
from optimist_common.observing.tracing import Tracer
from tests.tracing.collector import Collector, running_collector

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


def test_without_an_endpoint_there_are_no_spans_and_no_imports() -> None:
    code = (
        "import sys; from optimist_common.observing.tracing import OFF; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules) or OFF.is_on "
        "or OFF.start('x', {}) is not None)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_span_arrives_with_its_parent_attributes_events_and_error(collector: Collector) -> None:
    tracer = Tracer("gateway", collector.endpoint)
    span = tracer.start("chat m", {"a": 1}, trace_parent=SAMPLED, kind="server", start_ns=5)
    assert span is not None
    assert span.trace_id == TRACE
    span.event("first token", {"b": 2})
    span.set({"reasons": ["stop"]})
    span.end("broken", end_ns=9)
    tracer.close()
    (arrived,) = collector.spans
    assert (arrived.service, arrived.name) == ("optimist-gateway", "chat m")
    assert (arrived.trace_id, arrived.parent_id) == (TRACE, SPAN)
    assert span.trace_parent == f"00-{TRACE}-{arrived.span_id}-01"
    assert arrived.attributes == {"a": 1, "reasons": ["stop"]}
    assert (arrived.events, arrived.is_error) == (["first token"], True)
    assert (arrived.start_ns, arrived.end_ns) == (5, 9)


def test_the_parent_decides_what_is_recorded(collector: Collector) -> None:
    tracer = Tracer("gateway", collector.endpoint, sample_ratio=0.0)
    assert tracer.start("x", {}, trace_parent=UNSAMPLED) is None
    assert tracer.start("x", {}) is None
    for none in (f"00-{TRACE}-{SPAN}", f"ff-{TRACE}-{SPAN}-01", "\ud800", "x" * 10_000):
        assert tracer.start("x", {}, trace_parent=none) is None
    span = tracer.start("x", {}, trace_parent=SAMPLED)
    assert span is not None
    span.end()
    tracer.close()
    assert len(collector.spans) == 1


def test_a_collector_that_is_away_holds_nothing_up() -> None:
    tracer = Tracer("gateway", "http://127.0.0.1:9")
    for _ in range(5000):
        span = tracer.start("x", {})
        assert span is not None
        span.end()
    tracer.close()


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(SetupError, match=r"--otlp-endpoint: .*optimist\[otel\]"):
        Tracer("gateway", "http://127.0.0.1:9")
