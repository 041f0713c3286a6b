"""What is traced of requests that hold a slot."""

from collections.abc import Iterator

import pytest

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import to_bytes
from optimist_common.observing.tracing import Tracer
from optimist_worker.core.plan import StepResult
from optimist_worker.service.observing import RequestSpans
from tests.tracing.collector import CollectedSpan, Collector, running_collector
from tests.worker.step import make_result

TRACE_PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


def admit(slot: int, trace_parent: str = TRACE_PARENT) -> worker_pb2.ExecuteRequest:
    admission = worker_pb2.Admission(slot=slot, request_id=f"r{slot}", trace_parent=trace_parent)
    return worker_pb2.ExecuteRequest(admissions=[admission])


def release(*slots: int) -> worker_pb2.ExecuteRequest:
    return worker_pb2.ExecuteRequest(released_slots=to_bytes(list(slots)))


def result(*rows: tuple[int, int, int, int]) -> StepResult:
    """A result with slot, drafted, accepted and emitted tokens of each row."""
    slots, drafted, accepted, emitted = (list(column) for column in zip(*rows, strict=True))
    return make_result(
        slots,
        num_emitted_tokens=emitted,
        num_drafted_tokens=drafted,
        num_accepted_tokens=accepted,
        draft_sources=drafted,
    )


def run(collector: Collector, *, of_passes: bool) -> list[CollectedSpan]:
    """Runs two passes of a traced request and one that is not, and releases both."""
    tracer = Tracer("worker", collector.endpoint)
    spans = RequestSpans(tracer, of_passes=of_passes)
    spans.begin(admit(3))
    spans.begin(admit(4, trace_parent=""))
    spans.note(result((3, 8, 5, 6), (4, 1, 1, 2)), step_ns=1_000_000)
    spans.note(result((4, 0, 0, 1), (3, 2, 0, 1)), step_ns=500_000)
    spans.begin(release(3, 4))
    spans.note(result((3, 9, 9, 9)), step_ns=1)
    spans.end_all()
    tracer.close()
    return collector.spans


def test_a_span_adds_up_the_passes_of_its_request(collector: Collector) -> None:
    (span,) = run(collector, of_passes=False)
    assert span.attributes["optimist.request_id"] == "r3"
    assert span.attributes["optimist.num_passes"] == 2
    assert span.attributes["optimist.num_drafted_tokens"] == 10
    assert span.attributes["optimist.num_accepted_tokens"] == 5
    assert span.attributes["optimist.num_emitted_tokens"] == 7
    assert span.attributes["optimist.pass_seconds"] == pytest.approx(0.0015)


def test_passes_are_spans_if_asked_for(collector: Collector) -> None:
    spans = run(collector, of_passes=True)
    passes = [span for span in spans if span.name == "worker pass"]
    (whole,) = [span for span in spans if span not in passes]
    assert [span.attributes["optimist.num_emitted_tokens"] for span in passes] == [6, 1]
    assert {span.parent_id for span in passes} == {whole.span_id}
    assert [span.end_ns - span.start_ns >= 500_000 for span in passes] == [True, True]


def test_a_slot_that_is_taken_again_begins_another_span(collector: Collector) -> None:
    tracer = Tracer("worker", collector.endpoint)
    spans = RequestSpans(tracer)
    for _ in range(2):
        spans.begin(admit(3))
        spans.note(result((3, 0, 0, 1)), step_ns=1)
    spans.end_all()
    tracer.close()
    assert [span.attributes["optimist.num_passes"] for span in collector.spans] == [1, 1]
