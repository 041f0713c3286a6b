"""What the gateway counts, under its own names and under those of vLLM; its access log."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.observing.logs import JsonFormatter
from optimist_gateway.observing.metrics import TokenHistogram
from tests.gateway.fake_scheduler import FakeScheduler, Script, Step, tokens
from tests.gateway.harness import BODIES, CHAT, COMPLETIONS, Gateway, Start, until


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 9))),
    st.lists(st.floats(0.01, 4), min_size=1, max_size=5, unique=True),
)
def test_a_token_histogram_counts_as_if_each_token_were_observed(
    observed: list[tuple[float, int]], bounds: list[float]
) -> None:
    registry = CollectorRegistry()
    histogram = TokenHistogram("seconds", "text", sorted(bounds), ["tiny", "other"], registry)
    for value, count in observed:
        histogram.observe("tiny", value, count)
    total = sum(count for _, count in observed)
    tiny = {"model": "tiny"}
    assert registry.get_sample_value("seconds_count", tiny) == total
    assert registry.get_sample_value("seconds_count", {"model": "other"}) == 0
    assert registry.get_sample_value("seconds_bucket", {"le": "+Inf"} | tiny) == total
    mean = registry.get_sample_value("seconds_sum", tiny)
    assert mean == pytest.approx(sum(value * count for value, count in observed))
    for bound in bounds:
        below = sum(count for value, count in observed if value <= bound)
        assert registry.get_sample_value("seconds_bucket", {"le": repr(bound)} | tiny) == below


async def figures_of(gateway: Gateway) -> dict[str, float]:
    """Returns the gateway's metrics; those of the model are without its name."""
    named = (await gateway.figures()).items()
    return {
        re.sub(r'(?<=\{)model="tiny",?', "", name).replace("{}", ""): value for name, value in named
    }


async def require(gateway: Gateway, **expected: Any) -> None:
    """Compares metrics without labels but the model's."""
    figures = await figures_of(gateway)
    assert {name: figures[name] for name in expected} == expected


async def test_what_requests_and_choices_add(start: Start) -> None:
    async with start() as gateway:
        options: dict[str, Any] = {"accepted": [2, 1], "rejected": 5, "queue_us": 1500}
        token_ids = gateway.say("The quick brown fox", width=2, **options)
        for stream in (False, True):
            assert (await gateway.post(CHAT, n=2, stream=stream)).status_code == 200
        await gateway.refused(COMPLETIONS, prompt=None)
        await require(
            gateway,
            generation_tokens_total=4 * len(token_ids),
            # A prompt counts once for all choices.
            prompt_tokens_total=2 * len(tokens(gateway.adds[0].prompt_token_ids)),
            accepted_prediction_tokens_total=12,
            rejected_prediction_tokens_total=20,
            requests_in_flight=0,
            requests_without_token=0,
            time_to_first_token_seconds_count=4,
            request_time_per_output_token_seconds_count=4,
            # Those of the first step had nothing before them.
            inter_token_latency_seconds_count=4 * (len(token_ids) - 2),
            request_queue_seconds_count=4,
            request_queue_seconds_sum=pytest.approx(0.006),
            request_seconds_count=2,
            request_generation_tokens_sum=4 * len(token_ids),
            request_prompt_tokens_count=2,
        )
        for number in range(3):
            await gateway.http.get(f"/v1/{number}")
        figures = await figures_of(gateway)
        assert figures['requests_finished_total{reason="stop"}'] == 4
        assert figures[f'requests_total{{endpoint="{CHAT}",outcome="200"}}'] == 2
        assert figures[f'requests_total{{endpoint="{COMPLETIONS}",outcome="400"}}'] == 1
        assert figures['requests_total{endpoint="none",outcome="404"}'] == 3
        assert (await gateway.http.head("/metrics")).status_code == 200
        assert (
            figures[f'optimist_build_info{{service="gateway",version="{version("optimist")}"}}']
            == 1
        )
        assert len(list(text_string_to_metric_families(await gateway.metrics()))) > 20


async def test_a_choice_waits_until_its_first_token(start: Start) -> None:
    async with start() as gateway:
        gateway.scheduler.script = Script(hang=True)
        waiting = asyncio.create_task(gateway.post(COMPLETIONS))
        await until(lambda: bool(gateway.adds))
        await require(gateway, requests_without_token=1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await gateway.until_nothing_runs()
        figures = await figures_of(gateway)
        assert figures["requests_without_token"] == 0
        assert figures['requests_finished_total{reason="abort"}'] == 1
        assert "request_queue_seconds_count" in figures


async def test_what_the_scheduler_refuses_or_loses_is_a_failed_choice(start: Start) -> None:
    async with start() as gateway:
        full = scheduler_pb2.FINISH_REASON_OVERLOADED
        gateway.scheduler.script = Script(reason=full, message="full")
        await gateway.refused(COMPLETIONS, 429)
        figures = await figures_of(gateway)
        assert figures['requests_refused_total{reason="overloaded"}'] == 1
        assert figures['requests_finished_total{reason="error"}'] == 1
        # It was not served.
        assert figures["request_queue_seconds_count"] == figures["prompt_tokens_total"] == 0
        assert figures["request_seconds_count"] == 0
        gateway.scheduler.script = Script(steps=[Step([20])], break_stream=True)
        await gateway.refused(COMPLETIONS, 503)
        figures = await figures_of(gateway)
        assert figures['requests_finished_total{reason="error"}'] == 2
        assert figures.get('requests_finished_total{reason="abort"}', 0) == 0
        # Some of it was.
        assert figures["request_seconds_count"] == 1


async def test_the_event_loop_is_watched(gateway: Gateway) -> None:
    while (figures := await gateway.figures())["event_loop_delay_seconds_count"] == 0:
        pass
    assert figures["event_loop_tasks"] > 0


COUNTS: Any = {"num_running": 3, "num_waiting": 2, "num_free_blocks": 30, "num_blocks": 40}
COUNTS |= {"num_prefix_queries": 100, "num_prefix_hits": 60, "num_drafts": 10}
COUNTS |= {"num_drafted_tokens": 80, "num_accepted_tokens": 52}
STATS = scheduler_pb2.Stats(num_accepted_at_positions=[9, 8, 7], **COUNTS)
LABELS = 'engine="0",model_name="tiny"'


async def test_figures_of_schedulers_and_requests(start: Start) -> None:
    async with start(FakeScheduler(stats=STATS), vllm_metrics=True) as gateway:
        token_ids = gateway.say("The quick brown fox", width=2)
        await gateway.answer(COMPLETIONS, max_tokens=99)
        await gateway.until_shown("vllm:num_requests_running")
        figures = await gateway.figures()
        expected: dict[str, float] = {"num_requests_running": 3, "num_requests_waiting": 2}
        expected |= {"prefix_cache_queries_total": 100, "prefix_cache_hits_total": 60}
        expected |= {"kv_cache_usage_perc": 0.25, "generation_tokens_total": len(token_ids)}
        seconds = ("time_to_first_token", "e2e_request_latency", "request_time_per_output_token")
        expected |= {f"{name}_seconds_count": 1 for name in seconds}
        expected["inter_token_latency_seconds_count"] = len(token_ids) - 2
        assert {name: figures[f"vllm:{name}{{{LABELS}}}"] for name in expected} == expected
        success = 'request_success_total{engine="0",finished_reason="stop",model_name="tiny"}'
        bucket = 'e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"}'
        assert figures[f"vllm:{success}"] == figures[f"vllm:{bucket}"] == 1
        position = 'num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="2"}'
        assert figures[f"vllm:spec_decode_{position}"] == 7
        assert await read_by_vllm_bench(gateway) == {
            "vllm:spec_decode_num_drafts_total": [10],
            "vllm:spec_decode_num_draft_tokens_total": [80],
            "vllm:spec_decode_num_accepted_tokens_total": [52],
            "vllm:spec_decode_num_accepted_tokens_per_pos_total": [9, 8, 7],
        }


async def read_by_vllm_bench(gateway: Gateway) -> dict[str, list[float]]:
    """Reads as `vllm bench serve` does: whatever begins and ends so, in order."""
    read: dict[str, list[float]] = {}
    for line in (await gateway.metrics()).splitlines():
        name = line.split("{")[0].split(" ")[0]
        if name.startswith("vllm:spec_decode") and name.endswith("_total"):
            read.setdefault(name, []).append(float(line.split()[-1]))
    return read


async def test_figures_of_a_scheduler_that_went_away_are_not_shown(start: Start) -> None:
    options = {"vllm_metrics": True, "schedulers": ["127.0.0.1:9"]}
    async with start(waits=False, **options) as gateway:
        text = await gateway.metrics()
    assert "vllm:num_requests_waiting" not in text
    assert "vllm:prompt_tokens_total" in text


SECRET = "The secret brown fox"


@pytest.fixture
def lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> list[dict[str, Any]]:
    """The lines of the access log; what they are about is known where they are written."""
    written: list[dict[str, Any]] = []
    caplog.set_level(logging.INFO, "optimist_gateway.access")
    monkeypatch.setattr(
        "optimist_gateway.observing.request_record.logger.handle",
        lambda record: written.append(json.loads(JsonFormatter("gateway").format(record))),
    )
    return written


@pytest.fixture
async def logged(start: Start) -> AsyncIterator[Gateway]:
    """A gateway with an access log."""
    async with start(access_log=True) as gateway:
        gateway.say("jumps over the lazy dog", accepted=[1])
        yield gateway


async def access_line(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the one line; it may come a little after the answer."""
    await until(lambda: bool(lines))
    (line,) = lines
    lines.clear()
    return line


async def test_a_request_has_one_line(logged: Gateway, lines: list[dict[str, Any]]) -> None:
    num_tokens = sum(len(step.token_ids) for step in logged.scheduler.script.steps)
    logged.http.headers["x-request-id"] = "team-a/7"
    for stream in (False, True):
        fields = {"model": "tiny", "prompt": SECRET, "max_tokens": 99, "stream": stream}
        response = await logged.post(f"{COMPLETIONS}?key=hidden", key="sk-hidden", **fields)
        assert response.status_code == 200
        line = await access_line(lines)
        assert (line["message"], line["outcome"]) == ("POST /v1/completions", "200")
        assert (line["completion_tokens"], line["accepted_prediction_tokens"]) == (num_tokens, 1)
        assert line["prompt_tokens"] > 0
        assert line["model"] == "tiny"
        assert 0 <= line["first_token_seconds"] <= line["seconds"]
        assert not any(word in json.dumps(line) for word in ("secret", "hidden", "lazy"))
        assert response.headers["x-request-id"] == line["client_request_id"] == "team-a/7"
        assert line["request_id"] == logged.adds[-1].request_id


async def test_lines_of_what_fails(logged: Gateway, lines: list[dict[str, Any]]) -> None:
    await logged.refused(COMPLETIONS, 404, model="other")
    line = await access_line(lines)
    assert (line["outcome"], line["error"]) == ("404", "model_not_found")
    # Names that clients make up are not written.
    assert not {"prompt_tokens", "model"} & line.keys()
    logged.scheduler.script = Script(steps=[Step([5])], break_stream=True)
    await logged.post(COMPLETIONS, stream=True)
    line = await access_line(lines)
    assert (line["outcome"], line["error"]) == ("broken_stream", "scheduler_unavailable")
    # A path cannot forge a line.
    await logged.http.get("/v1/%0aINFO%20forged" + "x" * 500)
    line = await access_line(lines)
    assert line["message"].startswith("GET /v1/%0aINFO%20forged")
    assert len(line["message"]) < 250
    # Health and metrics are not logged.
    await logged.http.get("/health")
    await logged.http.get("/metrics")
    assert lines == []


async def test_without_the_flags_there_are_no_lines_spans_or_names_of_vllm(
    gateway: Gateway, lines: list[dict[str, Any]]
) -> None:
    gateway.say("jumps")
    headers = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    response = await gateway.http.post(COMPLETIONS, json=BODIES[COMPLETIONS], headers=headers)
    assert response.status_code == 200
    assert lines == []
    assert gateway.adds[0].trace_parent == ""
    assert "vllm:" not in await gateway.metrics()
