"""What the gateway counts, read as Prometheus reads it."""

import asyncio

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.observing.metrics import TokenHistogram
from tests.gateway.conftest import until
from tests.gateway.fake_scheduler import FakeScheduler, Say, Script, Step

BODY = {"model": "tiny", "prompt": "The quick"}
GATEWAY = "optimist_gateway_"


async def samples(http: httpx.AsyncClient) -> dict[str, float]:
    """Returns the value of each series, by its name and the values of its labels."""
    text = (await http.get("/metrics")).text
    return {
        ",".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 9))),
    st.lists(st.floats(0.01, 4), min_size=1, max_size=5, unique=True),
)
def test_a_token_histogram_counts_as_if_each_token_were_observed(
    observed: list[tuple[float, int]], bounds: list[float]
) -> None:
    registry = CollectorRegistry()
    histogram = TokenHistogram("seconds", "text", sorted(bounds), registry)
    for value, count in observed:
        histogram.observe(value, count)
    total = sum(count for _, count in observed)
    assert registry.get_sample_value("seconds_count") == total
    assert registry.get_sample_value("seconds_bucket", {"le": "+Inf"}) == total
    mean = registry.get_sample_value("seconds_sum")
    assert mean == pytest.approx(sum(value * count for value, count in observed))
    for bound in bounds:
        below = sum(count for value, count in observed if value <= bound)
        assert registry.get_sample_value("seconds_bucket", {"le": repr(bound)}) == below


async def test_times_are_counted_once_per_token_choice_or_request(
    http: httpx.AsyncClient, say: Say
) -> None:
    token_ids = say("The quick brown fox jumps", width=3, accepted=[3, 2], queue_us=1500)
    body = BODY | {"n": 2}
    assert (await http.post("/v1/completions", json=body)).status_code == 200
    found = await samples(http)
    assert found[GATEWAY + "time_to_first_token_seconds_count"] == 2
    assert found[GATEWAY + "inter_token_latency_seconds_count"] == 2 * (len(token_ids) - 3)
    assert found[GATEWAY + "time_per_output_token_seconds_count"] == 2
    assert found[GATEWAY + "queue_seconds_count"] == 2
    assert found[GATEWAY + "queue_seconds_sum"] == pytest.approx(0.003)
    assert found[GATEWAY + "end_to_end_seconds_count"] == 1
    assert found[GATEWAY + "request_completion_tokens_sum"] == 2 * len(token_ids)
    assert found[GATEWAY + "request_prompt_tokens_count"] == 1
    assert found[GATEWAY + "finished_total,stop"] == 2
    assert found[GATEWAY + "requests_waiting"] == 0


async def test_a_choice_waits_until_its_first_token(
    http: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    scheduler.script = Script(hang=True)
    stream = http.stream("POST", "/v1/completions", json=BODY | {"stream": True}, timeout=0.3)
    with pytest.raises(httpx.ReadTimeout):
        async with stream:
            pass
    await until(lambda: not scheduler.aborts.empty())
    found = await samples(http)
    assert found[GATEWAY + "requests_waiting"] == 0
    assert found[GATEWAY + "finished_total,abort"] == 1
    assert GATEWAY + "queue_seconds_count" in found


async def test_waiting_choices_are_shown(http: httpx.AsyncClient, scheduler: FakeScheduler) -> None:
    scheduler.script = Script(hang=True)
    waiting = asyncio.create_task(http.post("/v1/completions", json=BODY))
    await until(lambda: bool(scheduler.adds))
    assert (await samples(http))[GATEWAY + "requests_waiting"] == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (BODY | {"model": "other"}, "model_not_found"),
        (BODY | {"foo": 1}, "unknown_parameter"),
        (BODY | {"max_tokens": 10**6}, "context_length_exceeded"),
    ],
)
async def test_refusals_are_counted_by_their_reason(
    http: httpx.AsyncClient, body: dict[str, object], reason: str
) -> None:
    assert (await http.post("/v1/completions", json=body)).status_code in (400, 404)
    assert (await samples(http))[f"{GATEWAY}refusals_total,{reason}"] == 1


async def test_what_the_scheduler_refuses_is_a_failed_choice(
    http: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    scheduler.script = Script(reason=scheduler_pb2.FINISH_REASON_OVERLOADED, message="full")
    assert (await http.post("/v1/completions", json=BODY)).status_code == 429
    found = await samples(http)
    assert found[GATEWAY + "refusals_total,overloaded"] == 1
    assert found[GATEWAY + "finished_total,error"] == 1
    assert found[GATEWAY + "queue_seconds_count"] == 0
    # It was not served.
    assert found[GATEWAY + "prompt_tokens_total"] == 0
    assert found[GATEWAY + "end_to_end_seconds_count"] == 0


async def test_a_choice_whose_scheduler_is_lost_has_failed(
    http: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    scheduler.script = Script(steps=[Step([20])], break_stream=True)
    assert (await http.post("/v1/completions", json=BODY)).status_code == 503
    found = await samples(http)
    assert found[GATEWAY + "finished_total,error"] == 1
    assert found.get(GATEWAY + "finished_total,abort", 0) == 0
    # Some of it was.
    assert found[GATEWAY + "end_to_end_seconds_count"] == 1


async def test_the_event_loop_is_watched(http: httpx.AsyncClient) -> None:
    async def count() -> float:
        return (await samples(http))[GATEWAY + "event_loop_delay_seconds_count"]

    while await count() == 0:
        pass
    assert (await samples(http))[GATEWAY + "tasks"] > 0
