"""How long requests wait, and what is traced of them, reported to gateway, worker and proposer."""

from collections.abc import Iterator

import numpy as np
import pytest

from optimist.worker.v1 import worker_pb2
from optimist_common.drafts import DraftSource
from optimist_common.observing.tracing import OFF, Tracer
from optimist_scheduler.core.base.values import Ended, Finished, FinishReason
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.observing import metrics
from optimist_scheduler.observing.request_watch import RequestWatch
from optimist_scheduler.workers.translate import plan_message
from tests.scheduler.client import PROMPT, add, get_stats
from tests.scheduler.conftest import Start
from tests.scheduler.situation import Situation
from tests.tracing.collector import Collector, running_collector

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE_PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


def ended(reason: FinishReason = FinishReason.LENGTH, message: str = "") -> Ended:
    return Ended(1, 2, "r2", Finished(reason, message, num_passes=3))


def new_request() -> NewRequest:
    return NewRequest("r2", PROMPT, 5, owner=1, handle=2)


def plan_that_admits() -> worker_pb2.ExecuteRequest:
    """A plan that gives a slot to `r2`."""
    situation = Situation()
    situation.add(2, PROMPT, 5)
    plan = situation.scheduler.schedule(0.0)
    assert plan is not None
    return plan_message(plan)


def test_the_wait_ends_with_the_first_slot() -> None:
    watch = RequestWatch(OFF)
    watch.add(new_request(), TRACE_PARENT, now=10.0)
    watch.plan(plan_that_admits(), now=10.25)
    watch.plan(plan_that_admits(), now=99.0)
    assert watch.end(ended()) == 250_000


def test_a_request_without_a_slot_has_not_waited_for_one_nor_a_span_without_tracing() -> None:
    watch = RequestWatch(OFF)
    watch.add(new_request(), TRACE_PARENT, now=10.0)
    assert watch.trace_parents == {}
    assert watch.end(ended()) == 0
    assert watch.end(ended()) == 0


def test_a_span_goes_from_add_to_end(collector: Collector) -> None:
    tracer = Tracer("scheduler", collector.endpoint)
    watch = RequestWatch(tracer)
    watch.add(new_request(), TRACE_PARENT, now=10.0)
    span_id = watch.trace_parents["r2"].split("-")[2]
    watch.plan(plan_that_admits(), now=10.25)
    watch.end(ended(FinishReason.ERROR, "it failed"))
    assert watch.trace_parents == {}
    tracer.close()
    (span,) = collector.spans
    assert (span.trace_id, span.span_id) == (TRACE, span_id)
    assert span.events == ["admitted"]
    assert span.is_error
    assert span.attributes["optimist.queue_seconds"] == 0.25
    assert span.attributes["optimist.num_passes"] == 3


async def test_the_gateway_learns_how_long_a_request_waited_and_what_came_of_drafts(
    start: Start,
) -> None:
    _, client = await start()
    await client.ask(add(1, PROMPT))
    assert client.finished[1].queue_us > 0
    before = (await client.reply(get_stats(3))).stats
    metrics.DRAFTS.observe(
        np.array([DraftSource.PREDICTION], np.int32), *np.array([[5], [3], [4]], np.int32)
    )
    after = (await client.reply(get_stats(4))).stats
    assert after.num_drafts - before.num_drafts == 1
    assert after.num_drafted_tokens - before.num_drafted_tokens == 5
    assert after.num_accepted_tokens - before.num_accepted_tokens == 3
    places = zip(after.num_accepted_at_positions, before.num_accepted_at_positions, strict=True)
    assert [now - then for now, then in places][:5] == [1, 1, 1, 0, 0]
