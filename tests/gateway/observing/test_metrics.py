"""What the gateway counts, and its access log."""

import json
import logging
import re
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from optimist_common.observing.logs import JsonFormatter
from tests.gateway.fake_scheduler import Script, Step, tokens
from tests.gateway.harness import CHAT, COMPLETIONS, Gateway, Start, until


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
            inter_token_latency_seconds_count=4 * (-(-len(token_ids) // 2) - 1),
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
