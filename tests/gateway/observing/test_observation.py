"""The access log, and log lines that name their request."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from optimist_common.observing.logs import JsonFormatter
from tests.gateway.fake_scheduler import Script, Step
from tests.gateway.harness import BODIES, COMPLETIONS, Gateway, Start, until

SECRET = "The secret brown fox"


@pytest.fixture
async def logged(start: Start, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Gateway]:
    """A gateway with an access log."""
    caplog.set_level(logging.INFO, "optimist_gateway.access")
    async with start(access_log=True) as gateway:
        gateway.say("jumps over the lazy dog", accepted=[1])
        yield gateway


def access_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    formatter = JsonFormatter("gateway")
    return [
        json.loads(formatter.format(record))
        for record in caplog.records
        if record.name == "optimist_gateway.access"
    ]


async def access_line(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """Returns the one line; it may come a little after the answer."""
    await until(lambda: bool(access_lines(caplog)))
    (line,) = access_lines(caplog)
    caplog.clear()
    return line


async def test_a_request_is_one_line_without_texts(
    logged: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    num_tokens = sum(len(step.token_ids) for step in logged.scheduler.script.steps)
    for stream in (False, True):
        fields = {"prompt": SECRET, "max_tokens": 99, "stream": stream}
        url = f"{COMPLETIONS}?key=hidden"
        response = await logged.post(url, key="sk-hidden", model="tiny", **fields)
        assert response.status_code == 200
        line = await access_line(caplog)
        assert (line["message"], line["outcome"]) == ("POST /v1/completions", "200")
        assert line["completion_tokens"] == num_tokens
        assert line["prompt_tokens"] > 0
        assert line["accepted_prediction_tokens"] == 1
        assert 0 <= line["first_token_seconds"] <= line["seconds"]
        assert not any(word in json.dumps(line) for word in ("secret", "hidden", "lazy"))


async def test_a_line_has_both_names_of_its_request(
    logged: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = []
    formatter = JsonFormatter("gateway")
    # What a line is about is known where it is written.
    monkeypatch.setattr(
        "optimist_gateway.observing.request_record.logger.handle",
        lambda record: lines.append(json.loads(formatter.format(record))),
    )
    headers = {"x-request-id": "team-a/7"}
    response = await logged.http.post(COMPLETIONS, json=BODIES[COMPLETIONS], headers=headers)
    await until(lambda: bool(lines))
    assert response.headers["x-request-id"] == lines[0]["client_request_id"] == "team-a/7"
    assert lines[0]["request_id"] == response.json()["id"]


async def test_lines_of_what_fails(logged: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    await logged.refused(COMPLETIONS, 404, model="other")
    line = await access_line(caplog)
    assert (line["outcome"], line["error"]) == ("404", "model_not_found")
    assert "prompt_tokens" not in line
    logged.scheduler.script = Script(steps=[Step([5])], break_stream=True)
    await logged.post(COMPLETIONS, stream=True)
    line = await access_line(caplog)
    assert (line["outcome"], line["error"]) == ("broken_stream", "scheduler_unavailable")
    # A path cannot forge a line.
    await logged.http.get("/v1/%0aINFO%20forged" + "x" * 500)
    line = await access_line(caplog)
    assert line["message"].startswith("GET /v1/%0aINFO%20forged")
    assert len(line["message"]) < 250


async def test_health_and_metrics_are_not_logged(
    logged: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    await logged.http.get("/health")
    await logged.http.get("/metrics")
    assert access_lines(caplog) == []


async def test_without_the_flags_there_is_neither_a_line_nor_a_span(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gateway.say("jumps")
    headers = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    response = await gateway.http.post(COMPLETIONS, json=BODIES[COMPLETIONS], headers=headers)
    assert response.status_code == 200
    assert access_lines(caplog) == []
    assert gateway.adds[0].trace_parent == ""
