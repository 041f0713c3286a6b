"""What is counted of steps, and traced of requests that hold a slot."""

from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.observing.tracing import Tracer
from optimist_worker.core.plan import StepResult
from optimist_worker.service.observing import RequestSpans, observe_step
from tests.tracing.collector import running_collector
from tests.worker.step import make_result

EAGLE, TARGET = DraftSource.EAGLE, DraftSource.TARGET
Read = Callable[..., float]


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


@pytest.fixture
def added() -> Read:
    """How much a sample has grown since the test began."""
    before = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
    }

    def read(name: str, **labels: str) -> float:
        name = f"optimist_worker_{name}"
        now = REGISTRY.get_sample_value(name, labels) or 0.0
        return now - before.get((name, tuple(sorted(labels.items()))), 0.0)

    return read


def test_the_time_of_several_sources_is_nobodys(added: Read) -> None:
    rows = [(3, EAGLE, 5, 2), (1, EAGLE, 3, 0), (2, TARGET, 0, 0)]
    result = result_of((0, DraftSource.PREDICTION, 8, 8), *rows, draft_ns=2_000_000)
    observe_step(result, 0.01, 0.0)
    assert added("step_rows_total") == 4
    assert added("draft_seconds_count", source="eagle") == 0
    assert added("draft_seconds_count", source="mixed") == 1


def test_the_time_of_a_pass_is_split(added: Read) -> None:
    observe_step(result_of((0, EAGLE, 5, 2), draft_ns=2_000_000), 0.01, 0.0)
    assert added("draft_seconds_sum", source="eagle") == pytest.approx(0.002)
    assert added("verify_seconds_sum", source="eagle") == pytest.approx(0.008)
    assert added("step_seconds_sum") == pytest.approx(0.01)
    # A pass without drafts is none of drafting.
    observe_step(result_of((0, TARGET, 0, 0)), 0.01, 0.0)
    assert added("step_seconds_count") == 2
    for source in ("target", "mixed", "none"):
        assert added("verify_seconds_count", source=source) == 0
    # One that drafted in vain is.
    observe_step(result_of((0, TARGET, 0, 0), draft_ns=1_000_000), 0.01, 0.0)
    assert added("draft_seconds_sum", source="none") == pytest.approx(0.001)
    assert added("verify_seconds_sum", source="none") == pytest.approx(0.009)


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
