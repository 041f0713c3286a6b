"""What a scheduler has logged comes out again, and what was changed in a log is found."""

import asyncio
import logging
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from optimist.scheduler.v1 import journal_pb2, scheduler_pb2_grpc
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.errors import SetupError
from optimist_common.network.channel import open_channel
from optimist_common.network.endpoints import Peer
from optimist_common.network.health import is_serving
from optimist_scheduler.journal import FORMAT, Journal, read_entries
from optimist_scheduler.service.replay import Report, main, replay
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker
from optimist_scheduler.workers.dispatcher import Dispatcher, Worker
from optimist_scheduler.workers.translate import new_request, step_result
from tests.common.test_health import until_health
from tests.scheduler.client import PROMPT, add, ask, truth
from tests.scheduler.fake_services import FakeWorkerServicer, serve_worker
from tests.scheduler.fake_worker import FakeWorker, expected_output
from tests.scheduler.situation import make_window, take_window, window_message
from tests.stack import free_port

Entry = journal_pb2.JournalEntry


def record(path: Path, num_turns: int = 80, max_mib: int = 16, **values: Any) -> int:
    """Records two workers, of which one is lost in between; returns how many plans there were."""
    settings = SchedulerSettings(enable_prefix_caching=True, **{"max_plans_in_flight": 1, **values})
    journal = Journal(str(path), max_mib)
    journal.begin(settings.decisive)
    dispatcher, num_plans = Dispatcher(journal), 0
    workers = {Worker(Peer(f"worker:{n}", "worker"), journal): FakeWorker() for n in range(2)}
    for worker, fake in workers.items():
        worker.begin(describe_worker(fake.description, settings))
        dispatcher.join(worker)
    for turn in range(num_turns):
        if turn % 10 < 5:
            message = add(turn, [turn % 50, 7], max_tokens=5 + turn % 7).add
            dispatcher.add(new_request(message, 1), float(turn), message)
            window = make_window(0, -1, expected_output([turn % 50, 7], 50, 9, set()))
            take_window(dispatcher, window_message(message.request_id, window))
        for number, (worker, fake) in enumerate(workers.items()):
            if (turn, number) == (num_turns // 2, 0):
                worker.is_connected = False
                dispatcher.adopt(dispatcher.evacuate([worker]))
                fake.restart()
                worker.begin(describe_worker(fake.description, settings))
            if (plan := worker.schedule(float(turn))) is not None:
                num_plans += 1
                result = fake.execute(plan)
                worker.settle(step_result(result), result)
    for worker in workers:
        worker.end_journal()
    journal.close()
    return num_plans


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("recorded") / "log"
    record(path)
    return path.read_bytes()


@pytest.fixture
def log(tmp_path: Path, recorded: bytes) -> Path:
    """A log of which nothing is changed yet; whole runs are in test_random_commands.py."""
    path = tmp_path / "log"
    path.write_bytes(recorded)
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
            **{"format": FORMAT, "settings": SchedulerSettings().decisive, **values}
        )
    )
    return packed(entry.SerializeToString())


def flip(message: Any, name: str, row: int = 0) -> tuple[str, str]:
    """Changes a number, or one of a column; returns what it is now and what it was."""
    value = getattr(message, name)
    numbers = from_bytes(value).copy() if isinstance(value, bytes) else [value]
    numbers[row] ^= 1
    setattr(message, name, to_bytes(numbers) if isinstance(value, bytes) else numbers[row])
    return str(numbers[row]), str(numbers[row] ^ 1)


def change(entry: Entry, path: str) -> tuple[str, str] | None:
    """Changes what has a path, if it is there; returns what it is now and what it was."""
    name = path.partition(".")[2]
    match path:
        case "plan" if entry.HasField("scheduled") and not entry.HasField("plan"):
            entry.plan.SetInParent()
            return "a plan", "None"
        case "plan.admissions" if entry.plan.admissions:
            flip(entry.plan.admissions[0], "max_length")
            return "", ""
    if path.startswith("result.") and entry.result.token_ids:
        return flip(entry.result, name)
    if path.endswith("[1]") and len(entry.plan.slots) > 4:
        return flip(entry.plan, name.removesuffix("[1]"), row=1)
    return None


@pytest.mark.parametrize(
    "path",
    [
        *("result.token_ids", "plan.slots[1]", "plan.admissions", "plan"),
    ],
)
def test_what_was_changed_is_found(
    log: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = read(log)
    # None of the first.
    changes = ((place, change(entries[place], path)) for place in range(100, len(entries)))
    place, changed = next((place, changed) for place, changed in changes if changed)
    write(log, entries)
    assert main([str(log)]) == 1
    difference, event = replayed(log).difference, entries[place].WhichOneof("event")
    field = path if event == "scheduled" else "outcome"
    assert difference.startswith(f"entry {place + 1}, {event}, {field}: expected ")
    # Of what is no plan a checksum is in the log.
    if event == "scheduled" and changed[0]:
        assert f": expected {changed[0]}, got {changed[1]}" in capsys.readouterr().out


def test_an_entry_that_was_cut_off_is_tolerated_and_said(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_bytes(log.read_bytes()[:-1])
    assert main([str(log)]) == 0
    said = capsys.readouterr().out
    assert "identical" in said
    assert "the last entry is cut off" in said


@pytest.mark.parametrize("num_bytes", [0, 10])
def test_a_scheduler_that_starts_again_appends(log: Path, num_bytes: int) -> None:
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) - num_bytes])
    num_plans = replayed(log).num_plans
    second = record(log, num_turns=30, max_plans_in_flight=2)
    report = replayed(log)
    assert not report.difference
    assert report.num_runs == 2
    assert report.num_plans == num_plans + second
    assert not report.is_cut


def test_the_log_ends_at_its_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "log"
    log.write_bytes(start(settings=SchedulerSettings().decisive + " " * (2**20 - 20_000)))
    with caplog.at_level(logging.WARNING):
        num_plans = record(log, max_mib=1)
    assert sum("ends here" in record.message for record in caplog.records) == 1
    assert 2**20 - 10_000 < log.stat().st_size < 2**20 + 100
    report = replayed(log)
    assert not report.difference
    assert report.is_full
    assert report.num_plans < num_plans


def test_a_full_disk_ends_the_log_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert record(Path("/dev/full")) > 50
    assert sum("ends here" in record.message for record in caplog.records) == 1


def test_a_log_is_for_its_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    log, shared = tmp_path / "log", tmp_path / "shared"
    shared.touch()
    shared.chmod(0o640)
    before = os.umask(0)
    try:
        for path in (log, shared):
            Journal(str(path), 1).close()
    finally:
        os.umask(before)
    # Whoever lets others read a log of before has said so.
    assert [stat.S_IMODE(path.stat().st_mode) for path in (log, shared)] == [0o600, 0o640]


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


async def test_a_scheduler_process_waits_for_its_worker_and_its_log_comes_out_again(
    tmp_path: Path,
) -> None:
    log, port, worker_port = tmp_path / "log", free_port(), free_port()
    address = f"127.0.0.1:{port}"
    servicer = FakeWorkerServicer(FakeWorker())
    servicer.break_at = {5}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "optimist_cli", "scheduler", f"--port={port}"),
        *(f"--workers=127.0.0.1:{worker_port}", "--proposers=", f"--replay-log={log}"),
        "--max-plans-in-flight=2",
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    try:
        while b"is not reached" not in (line := await process.stderr.readline()):
            assert line, "the worker was not looked for"
        assert not await asyncio.to_thread(is_serving, address, 5)
        async with serve_worker(servicer, worker_port), open_channel(address) as channel:
            await until_health(address, good=True)
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            for handle in range(3):
                assert (await ask(stub, add(handle, PROMPT))).tokens == {handle: truth(PROMPT)}
            process.terminate()
            assert b"Traceback" not in await process.stderr.read()
            # A second signal would poll the process that has ended, and lose its status.
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert servicer.num_streams == 2
    events = [entry.WhichOneof("event") for entry in read(log)]
    assert events.count("added") == 3
    assert events.count("reached") == 2
    assert events[-1] == "closed"
    report = replayed(log)
    assert not report.difference
    assert report.num_plans >= 60
