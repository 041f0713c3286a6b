"""What is traced of requests that are followed."""

from array import array
from collections.abc import Iterator

import pytest

from optimist_aligner.text.sources import INT32
from optimist_common.observing.tracing import Tracer
from optimist_proposer.batch import RequestSpans
from optimist_proposer.core.messages import Answer, Observation, Open
from tests.tracing.collector import Collector, running_collector

TRACE_PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


def opening(request_id: str, trace_parent: str = TRACE_PARENT) -> Open:
    predictions = [array(INT32, [1, 2, 3]), array(INT32, [4])]
    return Open(request_id, predictions, array(INT32), "", trace_parent)


def observation(request_id: str, *token_ids: int) -> Observation:
    return Observation(request_id, 0, array(INT32, token_ids))


def test_a_span_adds_up_the_batches_of_its_request(collector: Collector) -> None:
    tracer = Tracer("proposer", collector.endpoint)
    spans = RequestSpans(tracer)
    spans.open(opening("traced"))
    spans.open(opening("refused"))
    spans.open(opening("other", trace_parent=""))
    spans.note({}, Answer(refusals={"refused": "too long"}))
    grouped = {
        name: [observation(name, 5, 6), observation(name, 7)] for name in ("traced", "other")
    }
    spans.note(grouped, Answer(gaps={"traced": 0}))
    spans.note({"traced": [observation("traced", 8)]}, Answer())
    spans.end("traced")
    spans.end("traced")
    spans.end("other")
    spans.end("refused")
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
        spans.open(opening(f"r{number}"))
    tracer.close()
    ended = [span.attributes["optimist.request_id"] for span in collector.spans]
    assert ended == ["r0", "r1", "r2"]
