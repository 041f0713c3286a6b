"""The access log, and log lines that name their request."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from optimist_common.observing.logs import JsonFormatter
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import served, until
from tests.gateway.fake_scheduler import EOS, FakeScheduler, Say, Script, Step

SECRET = "The secret brown fox"
BODY = {"model": "tiny", "prompt": SECRET}


@pytest.fixture
async def logged(
    settings: GatewaySettings, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway with an access log."""
    caplog.set_level(logging.INFO, "optimist_gateway.access")
    async with served(settings, tokenizer, access_log=True) as client:
        yield client


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
    return line


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_one_line_without_texts(
    logged: httpx.AsyncClient, say: Say, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    token_ids = say("jumps over the lazy dog", accepted=[1])
    headers = {"authorization": "Bearer sk-hidden"}
    url = "/v1/completions?key=hidden"
    response = await logged.post(
        url, json=BODY | {"stream": stream, "max_tokens": 99}, headers=headers
    )
    assert response.status_code == 200
    line = await access_line(caplog)
    assert line["message"] == "POST /v1/completions"
    assert line["outcome"] == "200"
    assert line["completion_tokens"] == len(token_ids)
    assert line["prompt_tokens"] > 0
    assert line["accepted_prediction_tokens"] == 1
    assert 0 <= line["first_token_seconds"] <= line["seconds"]
    assert not any(word in json.dumps(line) for word in ("secret", "hidden", "lazy"))


async def test_a_line_has_both_names_of_its_request(
    logged: httpx.AsyncClient, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("jumps")
    lines: list[dict[str, Any]] = []
    formatter = JsonFormatter("gateway")
    # What a line is about is known where it is written.
    monkeypatch.setattr(
        "optimist_gateway.observing.request_record.logger.handle",
        lambda record: lines.append(json.loads(formatter.format(record))),
    )
    response = await logged.post("/v1/completions", json=BODY, headers={"x-request-id": "team-a/7"})
    await until(lambda: bool(lines))
    assert response.headers["x-request-id"] == lines[0]["client_request_id"] == "team-a/7"
    assert lines[0]["request_id"] == response.json()["id"]


async def test_a_refusal_has_its_reason(
    logged: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    await logged.post("/v1/completions", json=BODY | {"model": "other"})
    line = await access_line(caplog)
    assert (line["outcome"], line["error"]) == ("404", "model_not_found")
    assert "prompt_tokens" not in line


async def test_a_stream_that_breaks_differs_from_one_that_ends(
    logged: httpx.AsyncClient, scheduler: FakeScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.script = Script(steps=[Step([5])], break_stream=True)
    await logged.post("/v1/completions", json=BODY | {"stream": True})
    line = await access_line(caplog)
    assert line["outcome"] == "broken_stream"
    assert line["error"] == "scheduler_unavailable"


async def test_a_path_cannot_forge_a_line(
    logged: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    await logged.get("/v1/%0aINFO%20forged" + "x" * 500)
    line = await access_line(caplog)
    assert line["message"].startswith("GET /v1/%0aINFO%20forged")
    assert len(line["message"]) < 250


async def test_health_and_metrics_are_not_logged(
    logged: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    await logged.get("/health")
    await logged.get("/metrics")
    assert access_lines(caplog) == []


async def test_without_the_flag_nothing_is_logged(
    http: httpx.AsyncClient, say: Say, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    say("jumps")
    assert (await http.post("/v1/completions", json=BODY)).status_code == 200
    assert access_lines(caplog) == []


async def test_without_tracing_the_scheduler_gets_no_span(
    http: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    scheduler.script = Script(steps=[Step([EOS])])
    headers = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    await http.post("/v1/completions", json=BODY, headers=headers)
    assert scheduler.adds[0].trace_parent == ""
