"""What is traced of requests that are followed."""

from collections.abc import Iterator

import pytest

from optimist_common.observing.tracing import Tracer
from optimist_proposer.batch import RequestSpans
from optimist_proposer.core.messages import Answer
from tests.proposer.holding import observation, opening
from tests.tracing.collector import Collector, running_collector

TRACE_PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


def test_a_span_adds_up_the_batches_of_its_request(collector: Collector) -> None:
    tracer = Tracer("proposer", collector.endpoint)
    spans = RequestSpans(tracer)
    spans.open(opening("traced", "abc", "d", trace_parent=TRACE_PARENT))
    spans.open(opening("refused", trace_parent=TRACE_PARENT))
    spans.open(opening("other"))
    spans.note({}, Answer(refusals={"refused": "too long"}))
    two = [observation(0, "ef"), observation(0, "g")]
    spans.note({"traced": two, "other": two}, Answer(gaps={"traced": 0}))
    spans.note({"traced": [observation(0, "h")]}, Answer())
    for request_id in ("traced", "traced", "other", "refused"):
        spans.end(request_id)
    tracer.close()
    refused, span = collector.spans
    names = ("predictions", "predicted_tokens", "batches", "observed_tokens", "gaps")
    assert [span.attributes[f"optimist.num_{name}"] for name in names] == [2, 4, 2, 4, 1]
    assert span.attributes["optimist.request_id"] == "traced"
    assert (span.is_error, refused.is_error) == (False, True)


def test_spans_without_an_end_are_bounded(collector: Collector) -> None:
    tracer = Tracer("proposer", collector.endpoint)
    spans = RequestSpans(tracer, max_spans=2)
    for number in range(5):
        spans.open(opening(f"r{number}", trace_parent=TRACE_PARENT))
    tracer.close()
    ended = [span.attributes["optimist.request_id"] for span in collector.spans]
    assert ended == ["r0", "r1", "r2"]
