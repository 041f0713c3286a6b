"""What a scheduler has logged comes out again, and what was changed in a log is found."""

import asyncio
import base64
import json
import logging
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.draft_source import DraftSource
from optimist_common.errors import SetupError
from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.requests.validate import NewRequest
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.values.logprobs import Logprobs
from optimist_scheduler.core.width.drafter import Drafter
from optimist_scheduler.journal.journal import Journal
from optimist_scheduler.journal.journal_difference import find_difference
from optimist_scheduler.journal.journal_line import (
    read_request,
    read_result,
    read_window,
    write_line,
    write_request,
    write_result,
    write_window,
)
from optimist_scheduler.journal.recorded_scheduler import RecordedScheduler
from optimist_scheduler.service.replay import Report, main, replay
from tests.scheduler.drive import window_of
from tests.scheduler.fake_services import FakeWorkerServicer, serve_worker
from tests.scheduler.fake_worker import FakeWorker
from tests.scheduler.recording import Recording
from tests.stack import free_port

MODES: list[dict[str, Any]] = [
    {},
    {"enable_optimistic_scheduling": False},
    {"max_plans_in_flight": 2},
    {"max_plans_in_flight": 3},
    {"max_plans_in_flight": 2, "multi_step_count": 3},
    {"num_pipeline_stages": 2},
    {"max_plans_in_flight": 2, "drafter": Drafter(DraftSource.EAGLE, 6, 3)},
    {"max_plans_in_flight": 3, "drafter": Drafter(DraftSource.DRAFT_MODEL, 2, 2)},
]


def record(path: Path, seed: int = 0, num_steps: int = 200, **values: Any) -> Recording:
    recording = Recording(path, seed, **values)
    recording.run(num_steps)
    return recording


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The log of one run."""
    path = tmp_path_factory.mktemp("recorded") / "log"
    record(path)
    return path.read_text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Recording]]:
    """A log and its recording in each mode."""
    directory = tmp_path_factory.mktemp("runs")
    return [
        (directory / str(seed), record(directory / str(seed), seed, **values))
        for seed, values in enumerate(MODES)
    ]


@pytest.fixture
def log(tmp_path: Path, recorded: str) -> Path:
    """A copy of that log."""
    path = tmp_path / "log"
    path.write_text(recorded)
    return path


def replayed(path: Path) -> Report:
    with path.open("rb") as file:
        return replay(file)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(write_line(line) + "\n" for line in lines))


def changed(column: str, row: int) -> str:
    """Returns a column with one number changed."""
    values = from_bytes(base64.b64decode(column)).copy()
    values[row] ^= 1
    return base64.b64encode(to_bytes(values)).decode()


@pytest.mark.parametrize("mode", range(len(MODES)))
def test_a_run_comes_out_again(runs: list[tuple[Path, Recording]], mode: int) -> None:
    path, recording = runs[mode]
    report = replayed(path)
    assert report.difference is None
    assert report.num_runs == 1
    assert report.num_plans == recording.num_plans > 50
    assert report.num_outputs >= recording.num_plans / 2
    assert not report.cut_lines
    assert not report.is_full


def test_the_recorded_runs_are_worth_it(runs: list[tuple[Path, Recording]]) -> None:
    calls: set[tuple[str, str]] = set()
    all_sources: set[int] = set()
    for (path, _), values in zip(runs, MODES, strict=True):
        lines = read_lines(path)[1:]
        calls |= {(line["call"], "raised" if "raised" in line else "out") for line in lines}
        stats = lines[-1]["out"]
        assert min(stats["num_preemptions"], stats["num_prefix_hits"], stats["num_starved"]) > 0
        is_ahead = values.get("enable_optimistic_scheduling", True)
        assert (stats["num_preschedule_hits"] > 0) == is_ahead
        assert (stats["num_preschedule_repairs"] > 0) == is_ahead
        assert (stats["num_repeats"] > 0) == ("multi_step_count" in values)
        sources = {
            source
            for line in lines
            if line["call"] == "settle"
            for source in from_bytes(base64.b64decode(line["result"]["draft_sources"])).tolist()
        }
        assert "drafter" not in values or values["drafter"].source in sources
        all_sources |= sources
    assert all_sources == {0, 1, DraftSource.DRAFT_MODEL, DraftSource.EAGLE}
    names = "add abort set_priority set_window pause resume prepare schedule settle restart close"
    raised = {("add", "raised"), ("settle", "raised")}
    assert calls == {(name, "out") for name in names.split()} | raised


def test_another_process_replays_it_too(log: Path) -> None:
    command = [sys.executable, "-m", "optimist_cli", "replay", str(log), "--json"]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["difference"] is None
    assert report["num_plans"] == replayed(log).num_plans


def test_the_summary_is_a_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = [line for line in read_lines(log) if line.get("call") == "schedule" and line["out"]]
    assert main([str(log)]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"plans {len(plans)}, outputs ")
    assert line.endswith(", identical\n")


@pytest.mark.parametrize("name", ["token_ids", "lengths", "num_accepted_tokens"])
def test_a_changed_number_of_a_result_is_found(log: Path, name: str) -> None:
    lines = read_lines(log)
    number, line = next(
        (number, line)
        for number, line in enumerate(lines, 1)
        if line.get("call") == "settle" and number > 200 and line["out"]["num_tokens"]
    )
    line["result"][name] = changed(line["result"][name], 0)
    write_lines(log, lines)
    difference = replayed(log).difference
    assert difference is not None
    assert (difference.line, difference.call) == (number, "settle")


@pytest.mark.parametrize(
    "name", ["slots", "num_known_tokens", "num_draft_tokens", "num_new_blocks"]
)
def test_a_changed_row_of_a_plan_is_found(
    log: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = read_lines(log)
    number, plan = next(
        (number, line["out"])
        for number, line in enumerate(lines, 1)
        if line.get("call") == "schedule"
        and number > 200
        and line["out"]
        and len(base64.b64decode(line["out"]["slots"])) > 4
    )
    before = from_bytes(base64.b64decode(plan[name]))[1]
    plan[name] = changed(plan[name], 1)
    write_lines(log, lines)
    assert main([str(log)]) == 1
    said = capsys.readouterr().out
    assert f"line {number}, schedule, out.{name}[1]: expected {before ^ 1}, got {before} " in said


def test_a_missing_command_is_found(log: Path) -> None:
    lines = read_lines(log)
    first = next(number for number, line in enumerate(lines) if line.get("call") == "add")
    write_lines(log, lines[:first] + lines[first + 1 :])
    assert replayed(log).difference is not None


def test_changed_totals_are_found(log: Path) -> None:
    lines = read_lines(log)
    lines[-1]["out"]["num_preschedule_hits"] += 1
    write_lines(log, lines)
    difference = replayed(log).difference
    assert difference is not None
    assert difference.field == "out.num_preschedule_hits"


def test_a_line_that_was_cut_off_is_tolerated_and_said(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = log.read_bytes()
    log.write_bytes(whole[:-10])
    num_lines = whole.count(b"\n")
    assert main([str(log)]) == 0
    said = capsys.readouterr().out
    assert "identical" in said
    assert f"line {num_lines} is cut off" in said


def test_a_scheduler_that_starts_again_appends(log: Path) -> None:
    num_plans = replayed(log).num_plans
    log.write_bytes(log.read_bytes()[:-10])
    second = record(log, seed=1, num_steps=50, max_plans_in_flight=2)
    report = replayed(log)
    assert report.difference is None
    assert report.num_runs == 2
    assert report.num_plans == num_plans + second.num_plans
    assert len(report.cut_lines) == 1


def test_the_log_ends_at_its_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "log"
    with caplog.at_level(logging.WARNING):
        recording = record(log, num_steps=1000, max_mib=1)
    assert not recording.journal.is_open
    assert sum("ends here" in record.message for record in caplog.records) == 1
    assert 2**20 - 10_000 < log.stat().st_size < 2**20 + 100
    report = replayed(log)
    assert report.difference is None
    assert report.is_full
    assert report.num_plans < recording.num_plans


def test_a_full_disk_ends_the_log_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        recording = record(Path("/dev/full"))
    assert recording.num_plans > 50
    assert sum("ends here" in record.message for record in caplog.records) == 1


def test_a_log_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--replay-log"):
        Journal(str(tmp_path / "missing" / "log"), 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"hello\n", "line 1 is not a JSON object"),
        (b"\x7fELF\x00\xff\xfe", "line 1 is not a JSON object"),
        (b"[1, 2]\n", "line 1 is not a JSON object"),
        (b'{"call": "prepare", "out": null}\n', "configuration"),
        (b'{"format": 99, "config": {}, "costs": []}\n', "the format is 99"),
        (
            b'{"format": 7, "config": {}, "costs": [], "drafter_us": []}\n',
            "line 1: .*vocab_size",
        ),
        (b'{"format": 7}\n', "line 1: KeyError"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    log = tmp_path / "log"
    log.write_bytes(content)
    with pytest.raises(SetupError, match=reason) as error:
        main([str(log)])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        {"call": "bake", "out": None},
        {"call": "resume"},
        {"call": "abort", "out": None},
        {"call": "settle", "result": {"slots": "?"}, "out": None},
    ],
)
def test_a_line_that_no_scheduler_wrote_is_named(log: Path, line: dict[str, Any]) -> None:
    lines = read_lines(log)
    write_lines(log, [*lines[:5], line, *lines[5:]])
    with pytest.raises(SetupError, match="line 6: "):
        main([str(log)])


def test_a_broken_line_in_the_middle_is_named(log: Path) -> None:
    first, second, *rest = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([first, second[:-9] + b"\n", *rest]))
    with pytest.raises(SetupError, match="line 2 is not a JSON object"):
        main([str(log)])


def test_a_missing_file_exits_with_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "optimist_cli", "replay", str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "nothing") in done.stderr


def test_arguments_survive_the_log() -> None:
    new = NewRequest(
        "é",
        [1, 2],
        3,
        predicted_token_ids=[4],
        num_predicted_tokens=[1],
        stop_token_ids=[5, 6],
        min_tokens=1,
        sampling=SamplingParams(
            0.7, 5, 0.9, 0.1, -(2**40), 1.1, 0.2, 0.3, {7: -1.5, 8: 2.0}, "start: X", 0, 3
        ),
        wants_prediction_positions=True,
        priority=-3,
        cache_salt="salt",
        output_token_ids=[11, 12],
        max_draft_tokens=2,
        is_followed=True,
        owner=9,
        handle=10,
    )
    defaults = NewRequest("", [], 0)
    assert all(getattr(new, each.name) != getattr(defaults, each.name) for each in fields(new))
    assert read_request(json.loads(write_line(write_request(new)))) == new
    nodes = [(4, -1, 3), (5, 0, -1), (6, 0, 7)]
    window = window_of(2, nodes, [0.75, 0.5, 0.25])
    again = read_window(json.loads(write_line(write_window(window))))
    assert again.base == 2
    assert again.tree.token_ids.tolist() == [4, 5, 6]
    assert again.tree.parents is not None
    assert again.tree.parents.tolist() == [-1, 0, 0]
    assert again.positions.tolist() == [3, -1, 7]
    assert again.values.tolist() == [0.75, 0.5, 0.25]
    chain = read_window(json.loads(write_line(write_window(window_of(0, nodes[:2])))))
    assert (chain.tree.parents, chain.has_values) == (None, False)
    columns = [np.array([number], np.int32) for number in range(9)]
    floats = np.array([-0.5, -np.inf], np.float32)
    told = Logprobs(4, 1, 2, 0, floats[:1], np.array([8, 9], np.int32), floats)
    result = StepResult(7, *columns, {3: "bad"}, 1, 2, 3, 4, 5, {6: told})  # type: ignore[arg-type, call-arg]
    got = read_result(json.loads(write_line(write_result(result))))
    for each in fields(result):
        if each.name != "logprobs":
            assert getattr(got, each.name) == getattr(result, each.name), each.name
    assert list(got.logprobs) == [6]
    for each in fields(told):
        assert np.array_equal(getattr(got.logprobs[6], each.name), getattr(told, each.name))


def test_the_first_difference_is_named() -> None:
    column = base64.b64encode(to_bytes([1, 2])).decode()
    longer = base64.b64encode(to_bytes([1, 2, 3])).decode()
    assert find_difference({"a": [1]}, {"a": [1]}) is None
    assert find_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == ("a.1.b", 2, 3)
    assert find_difference({"a": [1]}, {"a": [1, 2]}) == ("a", [1], [1, 2])
    assert find_difference({"a": 1}, {"a": 1, "b": 2}) == ("b", None, 2)
    assert find_difference({"out": None}, {"raised": 1}) == ("raised", None, 1)
    assert find_difference({"slots": column}, {"slots": longer}) == ("slots[2]", None, 3)
    assert find_difference({"slots": "?"}, {"slots": column}) == ("slots", "?", column)


def plans_of(log: Path) -> int:
    report = replayed(log)
    assert report.difference is None
    return report.num_plans


async def answer(stub: Any, handle: int) -> list[int]:
    """Sends one request and returns the tokens of its answer."""
    request = scheduler_pb2.ConnectRequest(command_id=1)
    request.add.handle, request.add.request_id = handle, f"request-{handle}"
    request.add.prompt_token_ids, request.add.max_tokens = to_bytes([1, 2, 3]), 12
    call = stub.Connect(iter([request]))
    return [
        token_id async for response in call for token_id in from_bytes(response.token_ids).tolist()
    ]


async def test_the_log_of_a_scheduler_process_comes_out_again(tmp_path: Path) -> None:
    log, port = tmp_path / "log", free_port()
    command = [sys.executable, "-m", "optimist_cli", "scheduler", "--port", str(port)]
    servicer = FakeWorkerServicer(FakeWorker())
    servicer.break_at = {5}
    async with serve_worker(servicer) as worker_port:
        process = await asyncio.create_subprocess_exec(
            *command,
            f"--workers=127.0.0.1:{worker_port}",
            "--proposers=",
            f"--replay-log={log}",
            "--max-plans-in-flight=2",
        )
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
                await until_serving(stub)
                answers = [await answer(stub, handle) for handle in range(3)]
        finally:
            process.terminate()
            assert await process.wait() == 0
    assert all(len(tokens) == 12 for tokens in answers)
    assert servicer.num_streams == 2
    calls = [line["call"] for line in read_lines(log)[1:]]
    assert calls.count("add") == 3
    assert calls.count("restart") >= 1
    assert calls[-1] == "close"
    assert plans_of(log) >= 36


async def until_serving(stub: Any) -> None:
    """Waits until the scheduler has reached its worker."""
    async with asyncio.timeout(60):
        while True:
            try:
                await stub.Describe(scheduler_pb2.DescribeRequest(), wait_for_ready=True)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)
            else:
                return


def test_a_recorded_scheduler_has_what_the_engine_uses() -> None:
    def names(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    core_only = {"compute_schedule", "apply_schedule", "check_integrity"}
    assert names(Scheduler) | {"stats"} == names(RecordedScheduler) - {"close"} | core_only
