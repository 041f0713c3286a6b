"""What a scheduler has logged comes out again, and what was changed in a log is found."""

import asyncio
import json
import logging
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from optimist.scheduler.v1 import journal_pb2, scheduler_pb2, scheduler_pb2_grpc
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.errors import SetupError
from optimist_scheduler.core.width.drafter import Drafter
from optimist_scheduler.journal import Journal, read_entries
from optimist_scheduler.service.replay import Report, main, replay
from optimist_scheduler.settings import SchedulerSettings
from tests.scheduler.fake_services import FakeWorkerServicer, serve_worker
from tests.scheduler.fake_worker import FakeWorker
from tests.scheduler.recording import Recording
from tests.stack import free_port

Entry = journal_pb2.JournalEntry

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


def record(path: Path, seed: int = 0, num_steps: int = 120, **values: Any) -> Recording:
    recording = Recording(path, seed, **values)
    recording.run(num_steps)
    return recording


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Recording]]:
    """A log and its recording in each mode."""
    directory = tmp_path_factory.mktemp("runs")
    return [
        (directory / str(seed), record(directory / str(seed), seed, **values))
        for seed, values in enumerate(MODES)
    ]


@pytest.fixture
def log(tmp_path: Path, runs: list[tuple[Path, Recording]]) -> Path:
    """A copy of the first of them."""
    path = tmp_path / "log"
    path.write_bytes(runs[0][0].read_bytes())
    return path


def replayed(path: Path) -> Report:
    with path.open("rb") as file:
        return replay(file)


def read(path: Path) -> list[Entry]:
    with path.open("rb") as file:
        entries = list(read_entries(file))
    whole = [entry for entry in entries if entry is not None]
    assert len(whole) == len(entries)
    return whole


def packed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def write(path: Path, entries: list[Entry]) -> None:
    path.write_bytes(b"".join(packed(entry.SerializeToString()) for entry in entries))


def start(**values: Any) -> bytes:
    entry = Entry(
        start=journal_pb2.JournalStart(
            **{"format": 7, "settings": SchedulerSettings().decisive, **values}
        )
    )
    return packed(entry.SerializeToString())


def find(entries: list[Entry], is_it: Callable[[Entry], bool], first: int = 200) -> int:
    """Returns the index of the first such entry that is not one of the first."""
    return next(index for index, entry in enumerate(entries) if index >= first and is_it(entry))


def changed(column: bytes, row: int) -> bytes:
    """Returns a column with one number changed."""
    values = from_bytes(column).copy()
    values[row] ^= 1
    return to_bytes(values)


@pytest.mark.parametrize("mode", range(len(MODES)))
def test_a_run_comes_out_again(runs: list[tuple[Path, Recording]], mode: int) -> None:
    path, recording = runs[mode]
    report = replayed(path)
    assert report.difference is None
    assert report.num_runs == 1
    assert report.num_plans == recording.num_plans > 50
    assert report.num_outputs >= recording.num_plans / 2
    assert not report.is_cut
    assert not report.is_full


def test_the_recorded_runs_are_worth_it(runs: list[tuple[Path, Recording]]) -> None:
    events: set[str | None] = set()
    all_sources: set[int] = set()
    num_adopted = 0
    for (path, recording), values in zip(runs, MODES, strict=True):
        entries = read(path)
        events |= {entry.WhichOneof("event") for entry in entries}
        one, other = (worker.scheduler.stats for worker in recording.workers)
        assert min(one.num_preemptions, one.num_prefix_hits) > 0
        assert one.num_starved + other.num_starved > 0
        is_ahead = values.get("enable_optimistic_scheduling", True)
        assert (one.num_preschedule_hits > 0) == is_ahead
        assert (one.num_preschedule_repairs > 0) == is_ahead
        assert (one.num_repeats > 0) == ("multi_step_count" in values)
        sources = {
            source
            for entry in entries
            for source in from_bytes(entry.result.draft_sources).tolist()
        }
        assert "drafter" not in values or values["drafter"].source in sources
        all_sources |= sources
        num_adopted += sum(len(entry.adopted.request_ids) for entry in entries)
    assert all_sources == {0, 1, DraftSource.DRAFT_MODEL, DraftSource.EAGLE}
    assert num_adopted > 0
    names = {field.name for field in Entry.DESCRIPTOR.oneofs_by_name["event"].fields}
    assert events == names - {"left", "full"}


def test_another_process_replays_it_too(log: Path) -> None:
    command = [sys.executable, "-m", "optimist_cli", "replay", str(log), "--json"]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["difference"] is None
    assert report["num_plans"] == replayed(log).num_plans


def test_the_summary_is_a_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    num_plans = sum(entry.HasField("plan") for entry in read(log))
    assert main([str(log)]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"plans {num_plans}, outputs ")
    assert line.endswith(", identical\n")


@pytest.mark.parametrize("name", ["token_ids", "lengths", "num_accepted_tokens"])
def test_a_changed_number_of_a_result_is_found(log: Path, name: str) -> None:
    entries = read(log)
    index = find(entries, lambda entry: len(entry.result.token_ids) > 0)
    result = entries[index].result
    setattr(result, name, changed(getattr(result, name), 0))
    write(log, entries)
    difference = replayed(log).difference
    assert difference is not None
    assert (difference.entry, difference.event) == (index + 1, "result")


@pytest.mark.parametrize(
    "name", ["slots", "num_known_tokens", "num_draft_tokens", "num_new_blocks"]
)
def test_a_changed_row_of_a_plan_is_found(
    log: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = read(log)
    index = find(entries, lambda entry: len(entry.plan.slots) > 4)
    plan = entries[index].plan
    before = from_bytes(getattr(plan, name))[1]
    setattr(plan, name, changed(getattr(plan, name), 1))
    write(log, entries)
    assert main([str(log)]) == 1
    said = capsys.readouterr().out
    where = f"entry {index + 1}, scheduled, plan.{name}[1]"
    assert f"{where}: expected {before ^ 1}, got {before} " in said


def test_a_changed_admission_is_found(log: Path) -> None:
    entries = read(log)
    index = find(entries, lambda entry: len(entry.plan.admissions) > 0)
    entries[index].plan.admissions[0].max_length += 1
    write(log, entries)
    difference = replayed(log).difference
    assert difference is not None
    assert difference.field == "plan.admissions[0].max_length"


def test_a_missing_plan_is_found(log: Path) -> None:
    entries = read(log)
    index = find(entries, lambda entry: entry.HasField("scheduled") and not entry.HasField("plan"))
    other = find(entries, lambda entry: entry.HasField("plan"))
    entries[index].plan.CopyFrom(entries[other].plan)
    write(log, entries)
    difference = replayed(log).difference
    assert difference is not None
    assert (difference.entry, difference.expected, difference.got) == (index + 1, "a plan", "None")


@pytest.mark.parametrize("event", ["added", "reached"])
def test_a_missing_entry_is_found(log: Path, event: str) -> None:
    entries = read(log)
    index = find(entries, lambda entry: entry.WhichOneof("event") == event, first=0)
    write(log, entries[:index] + entries[index + 1 :])
    assert replayed(log).difference is not None


def test_changed_totals_are_found(log: Path) -> None:
    entries = read(log)
    entries[-1].outcome ^= 1
    write(log, entries)
    difference = replayed(log).difference
    assert difference is not None
    assert (difference.event, difference.field) == ("closed", "outcome")


@pytest.mark.parametrize("num_bytes", [1, 10])
def test_an_entry_that_was_cut_off_is_tolerated_and_said(
    log: Path, num_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_bytes(log.read_bytes()[:-num_bytes])
    assert main([str(log)]) == 0
    said = capsys.readouterr().out
    assert "identical" in said
    assert "the last entry is cut off" in said


@pytest.mark.parametrize("num_bytes", [0, 1, 10])
def test_a_scheduler_that_starts_again_appends(log: Path, num_bytes: int) -> None:
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) - num_bytes])
    num_plans = replayed(log).num_plans
    second = record(log, seed=1, num_steps=30, max_plans_in_flight=2)
    report = replayed(log)
    assert report.difference is None
    assert report.num_runs == 2
    assert report.num_plans == num_plans + second.num_plans
    assert not report.is_cut


def test_the_log_ends_at_its_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "log"
    log.write_bytes(start(settings=SchedulerSettings().decisive + " " * (2**20 - 40_000)))
    with caplog.at_level(logging.WARNING):
        recording = record(log, max_mib=1)
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


@pytest.mark.parametrize("name", ["missing/log", "text"])
def test_a_log_that_cannot_be_written_is_said_at_the_start(tmp_path: Path, name: str) -> None:
    text = tmp_path / "text"
    text.write_text("something else\n")
    with pytest.raises(SetupError, match="--replay-log"):
        Journal(str(tmp_path / name), 1)
    assert text.read_text() == "something else\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"hello\n", "entry 1: an entry cannot have 1819043176 bytes"),
        (packed(b"\xff\xff"), "entry 1: it cannot be decoded"),
        (packed(Entry(aborted="r1").SerializeToString()), "entry 1: the log does not begin with"),
        (start(format=99), "entry 1: the format is 99"),
        (start(settings="{}}"), "entry 1: .*JSON"),
        (start() + packed(b"\xff"), "entry 1: it cannot be decoded"),
        (start() + packed(b""), "entry 2: it has no event"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    log = tmp_path / "log"
    log.write_bytes(content)
    with pytest.raises(SetupError, match=reason) as error:
        main([str(log)])
    assert "\n" not in str(error.value)


def test_a_missing_file_exits_with_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "optimist_cli", "replay", str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "nothing") in done.stderr


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
    events = [entry.WhichOneof("event") for entry in read(log)]
    assert events.count("added") == 3
    assert events.count("reached") == 2
    assert events[-1] == "closed"
    report = replayed(log)
    assert report.difference is None
    assert report.num_plans >= 36


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
