"""What is traced of requests that hold a slot."""

import pytest

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.observing.tracing import Tracer
from optimist_worker.core.plan import StepResult
from optimist_worker.service.observing import RequestSpans
from tests.tracing.collector import running_collector
from tests.worker.step import make_result

EAGLE, TARGET = DraftSource.EAGLE, DraftSource.TARGET


def result_of(*rows: tuple[int, int, int, int], draft_ns: int = 0) -> StepResult:
    """Rows of slot, source, drafts and accepted ones; each emits one token more than it accepts."""
    slots, sources, drafted, accepted = (list(column) for column in zip(*rows, strict=True))
    return make_result(
        slots,
        num_emitted_tokens=[number + 1 for number in accepted],
        token_ids=[7] * (sum(accepted) + len(rows)),
        num_drafted_tokens=drafted,
        num_accepted_tokens=accepted,
        draft_sources=sources,
        draft_ns=draft_ns,
    )


TRACE_PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def admit(slot: int, trace_parent: str = TRACE_PARENT) -> worker_pb2.ExecuteRequest:
    admission = worker_pb2.Admission(slot=slot, request_id=f"r{slot}", trace_parent=trace_parent)
    return worker_pb2.ExecuteRequest(admissions=[admission])


@pytest.mark.parametrize("of_passes", [False, True])
def test_a_span_adds_up_the_passes_of_its_request(*, of_passes: bool) -> None:
    """Of two requests one is traced; its passes are spans if asked for."""
    with running_collector() as collector:
        tracer = Tracer("worker", collector.endpoint)
        spans = RequestSpans(tracer, of_passes=of_passes)
        spans.begin(admit(3))
        spans.begin(admit(4, trace_parent=""))
        spans.note(result_of((3, EAGLE, 8, 5), (4, EAGLE, 1, 1)), step_ns=1_000_000)
        spans.note(result_of((4, TARGET, 0, 0), (3, EAGLE, 2, 0)), step_ns=500_000)
        spans.begin(worker_pb2.ExecuteRequest(released_slots=to_bytes([3, 4])))
        spans.note(result_of((3, EAGLE, 9, 9)), step_ns=1)
        # A slot that is taken again begins another span.
        spans.begin(admit(3))
        spans.end_all()
        tracer.close()
    passes = [span for span in collector.spans if span.name == "worker pass"]
    whole, another = [span for span in collector.spans if span not in passes]
    assert another.attributes["optimist.num_passes"] == 0
    assert whole.attributes["optimist.request_id"] == "r3"
    assert whole.attributes["optimist.num_passes"] == 2
    assert whole.attributes["optimist.num_drafted_tokens"] == 10
    assert whole.attributes["optimist.num_accepted_tokens"] == 5
    assert whole.attributes["optimist.num_emitted_tokens"] == 7
    assert whole.attributes["optimist.pass_seconds"] == pytest.approx(0.0015)
    emitted = [span.attributes["optimist.num_emitted_tokens"] for span in passes]
    assert emitted == ([6, 1] if of_passes else [])
    assert all(span.parent_id == whole.span_id for span in passes)
    assert all(span.end_ns - span.start_ns >= 500_000 for span in passes)
