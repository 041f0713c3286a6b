import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.errors import SetupError
from optimist_common.observing.tracing import OFF, TraceParent, Tracer, parse_trace_parent
from tests.tracing.collector import Collector, running_collector

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


def test_without_an_endpoint_there_are_no_spans_and_no_imports() -> None:
    assert OFF.start("x", {}, trace_parent=SAMPLED) is None
    assert not OFF.is_on
    OFF.close()
    code = (
        "import sys; from optimist_common.observing.tracing import OFF; OFF.start('x', {}); "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_span_arrives_with_its_parent_attributes_events_and_error(collector: Collector) -> None:
    tracer = Tracer("gateway", collector.endpoint)
    span = tracer.start("chat m", {"a": 1}, trace_parent=SAMPLED, kind="server", start_ns=5)
    assert span is not None
    parent = parse_trace_parent(span.trace_parent)
    assert parent is not None
    assert (parent.trace_id, parent.is_sampled) == (TRACE, True)
    assert span.trace_id == TRACE
    span.event("first token", {"b": 2})
    span.set({"reasons": ["stop"]})
    span.end("broken", end_ns=9)
    tracer.close()
    (arrived,) = collector.spans
    assert (arrived.service, arrived.name) == ("optimist-gateway", "chat m")
    assert (arrived.trace_id, arrived.parent_id) == (TRACE, SPAN)
    assert arrived.span_id == parent.span_id
    assert arrived.attributes == {"a": 1, "reasons": ["stop"]}
    assert (arrived.events, arrived.is_error) == (["first token"], True)
    assert (arrived.start_ns, arrived.end_ns) == (5, 9)


def test_the_parent_decides_what_is_recorded(collector: Collector) -> None:
    tracer = Tracer("gateway", collector.endpoint, sample_ratio=0.0)
    assert tracer.start("x", {}, trace_parent=UNSAMPLED) is None
    assert tracer.start("x", {}) is None
    assert tracer.start("x", {}, trace_parent="none") is None
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


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f" 00-{TRACE}-{SPAN}-03 ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-add", True),
        # What is no traceparent is ignored.
        ("", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{SPAN}-1", None),
        (f"cc-{TRACE}-{SPAN}-01-{'x' * 300}", None),
    ],
)
def test_reads_a_traceparent_as_the_standard_allows(text: str, is_sampled: bool | None) -> None:
    expected = None if is_sampled is None else TraceParent(TRACE, SPAN, is_sampled)
    assert parse_trace_parent(text) == expected


@given(
    st.builds(
        TraceParent,
        st.integers(1, 2**128 - 1).map(lambda number: f"{number:032x}"),
        st.integers(1, 2**64 - 1).map(lambda number: f"{number:016x}"),
        st.booleans(),
    )
)
def test_reads_the_traceparent_that_it_writes(parent: TraceParent) -> None:
    assert parse_trace_parent(str(parent)) == parent


@given(st.text(max_size=80))
def test_no_text_of_a_traceparent_is_an_error(text: str) -> None:
    parse_trace_parent(text)
