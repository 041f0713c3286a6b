"""Logs that an engine writes of its requests, as `optimist explain` reads them."""

import stat
from collections.abc import Callable
from concurrent.futures import Future
from io import BytesIO
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from optimist_cli.explain.command import page, summarise
from optimist_cli.explain.story import Summary
from optimist_cli.explain.text import Style
from optimist_common.request_log.settings import RequestLogSettings
from optimist_vllm.core.payload import PAYLOAD, Payload
from optimist_vllm.engine.log_writer import LogWriter
from optimist_vllm.engine.logged_scheduler import (
    LOGGED_SCHEDULER,
    VARIABLE,
    LoggedScheduler,
    use_logged_scheduler,
)
from tests.vllm.engine import Engine, tokens
from tests.vllm.test_scheduler import CODE, RENAMED, last_report, payload


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    config = SimpleNamespace(scheduler_config=SimpleNamespace(scheduler_cls=None))
    # It is set by the engine; so that it is not left to other tests.
    monkeypatch.setenv(VARIABLE, "")
    directory = str(tmp_path / "log")
    settings = RequestLogSettings(request_log=True, request_log_dir=directory)
    use_logged_scheduler(config, settings)
    assert config.scheduler_config.scheduler_cls == LOGGED_SCHEDULER
    return Engine(monkeypatch, scheduler_class=LoggedScheduler)


@pytest.fixture
def read(engine: Engine, tmp_path: Path) -> Callable[[str], bytes]:
    """Returns what reads a log once all is written."""

    def read(request_id: str) -> bytes:
        engine.scheduler.shutdown()
        return (tmp_path / "log" / f"{request_id}.jsonl").read_bytes()

    return read


def summary_of(log: bytes) -> Summary:
    return summarise(BytesIO(log))


def test_explain_tells_the_story_of_a_request(
    engine: Engine, read: Callable[[str], bytes], tmp_path: Path
) -> None:
    engine.add("chatcmpl-1", RENAMED, extra_args={PAYLOAD: payload(CODE)})
    num_passes = engine.run()
    log = read("chatcmpl-1")
    summary = summary_of(log)
    assert summary.request_id == "chatcmpl-1"
    assert summary.steps == num_passes
    assert summary.output_tokens == len(RENAMED) + 1
    assert summary.num_prompt_tokens == len("ask")
    # Each pass emits a token of the model's own besides.
    assert summary.accepted == summary.output_tokens - num_passes
    assert summary.accepted_from_prediction == last_report(engine, "chatcmpl-1").num_accepted
    assert summary.alignments > 0
    assert summary.end == "the request was closed"
    assert not summary.missing_tokens
    story = "\n".join(page(BytesIO(log), Style(is_coloured=False, width=200)))
    assert "proposes 64 tokens from line 1 of 12" in story
    assert "found again in it" in story
    assert "does not say" not in story
    directory = tmp_path / "log"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [stat.S_IMODE(each.stat().st_mode) for each in directory.iterdir()] == [0o600]


def test_what_an_earlier_run_delivered_was_observed_elsewhere(
    engine: Engine, read: Callable[[str], bytes]
) -> None:
    delivered, rest = RENAMED[:20], RENAMED[20:]
    prediction = Payload.of(0, [tokens(CODE)])
    again = Payload(None, prediction.predictions, num_delivered=len(delivered))
    engine.add("1", rest, prompt=tokens(f"ask{delivered}"), extra_args={PAYLOAD: again})
    num_passes = engine.run()
    summary = summary_of(read("1"))
    assert summary.steps == num_passes
    assert summary.output_tokens == len(rest) + 1
    assert summary.missing_tokens == len(delivered)
    assert summary.num_prompt_tokens == len("ask")


def test_a_log_ends_with_its_request_however_that_ends(
    engine: Engine, read: Callable[[str], bytes]
) -> None:
    for request_id in ("aborted", "faulty", "running"):
        engine.add(request_id, CODE, extra_args={PAYLOAD: payload(CODE)})
    engine.step()
    engine.scheduler.finish_requests(["aborted"], "aborted")
    followed: Any = engine.scheduler._entries["faulty"].followed
    followed.find_path = Mock(side_effect=ZeroDivisionError)
    engine.step()
    ends = {each: summary_of(read(each)).end for each in ("aborted", "faulty", "running")}
    assert ends == {
        "aborted": "the request was closed",
        "faulty": "the request was closed",
        # It may go on elsewhere.
        "running": None,
    }


def test_requests_that_are_not_followed_have_no_log(engine: Engine, tmp_path: Path) -> None:
    engine.add("1", CODE, extra_args={PAYLOAD: Payload(None, [], max_drafts=0)})
    engine.add("2", CODE, extra_args={"prediction": {"type": "none"}})
    engine.run()
    engine.scheduler.shutdown()
    assert not (tmp_path / "log").exists()


def test_passes_do_not_wait_for_a_slow_disk(caplog: pytest.LogCaptureFixture) -> None:
    logs, may_write = Mock(), Event()
    logs.step.side_effect = lambda *_: may_write.wait()
    writer = LogWriter(logs, most_waiting=2)
    prepared: Future[Any] = Future()
    prepared.set_result(Mock())
    for request_id in map(str, range(9)):
        writer.begin(request_id, prepared, [])
        writer.step(request_id, [1], None, 0.0, 0)
        writer.end(request_id)
        writer.flush()
    assert caplog.text.count("logs of requests lack steps") == 1
    may_write.set()
    writer.stop()
    assert 0 < logs.step.call_count < 9
    # Files are closed all the same.
    assert logs.open.call_count == logs.close.call_count == 9
    logs.stop.assert_called_once_with()


def test_a_step_that_cannot_be_written_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    logs = Mock()
    logs.step.side_effect = [ZeroDivisionError, None]
    writer = LogWriter(logs)
    prepared: Future[Any] = Future()
    prepared.set_result(Mock())
    writer.begin("1", prepared, [])
    for _ in range(2):
        writer.step("1", [1], None, 0.0, 0)
    writer.stop()
    assert logs.step.call_count == 2
    assert "a step of a request is not logged" in caplog.text
