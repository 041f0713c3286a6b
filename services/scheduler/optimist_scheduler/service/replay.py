"""`optimist replay LOG`: feeds a scheduler what its log says, and compares what comes out."""

import json
import reprlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, ClassVar

from google.protobuf.message import Message
from pydantic import Field

from optimist.scheduler.v1 import journal_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes
from optimist_common.errors import SetupError
from optimist_common.network.endpoints import Peer
from optimist_common.scheduler_service.fields import PAUSE_MODES
from optimist_common.settings import ServiceSettings, load_settings
from optimist_scheduler.core.base.values import Ended, SchedulerStats
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.journal import FORMAT, checksum, read_entries
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker
from optimist_scheduler.workers.dispatcher import Dispatcher, Worker
from optimist_scheduler.workers.translate import new_request, step_result


class ReplaySettings(ServiceSettings):
    """Replays a log of --replay-log: optimist replay LOG [--json].

    The exit code is 0 if every plan and every output comes out again as it is in the log, 1 if one
    does not, 2 if the file is no such log.
    """

    section: ClassVar[str] = "replay"
    arguments: ClassVar[tuple[str, ...]] = ("log",)

    log: str = Field(description="the log")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that came out differently."""

    entry: int
    """Number of the entry, from 1 on."""
    event: str
    field: str
    """Path to the value in the plan, with the row for a column; "outcome" for what is no plan."""
    expected: str
    """What the log has; a checksum for what is no plan."""
    got: str


@dataclass(slots=True)
class Report:
    """What a log holds, and whether it came out again."""

    num_runs: int = 0
    """Starts of the scheduler that appended to the log."""
    num_entries: int = 0
    num_plans: int = 0
    num_outputs: int = 0
    """Results that were settled."""
    is_full: bool = False
    """Whether the log ends at its bound, before the scheduler did."""
    is_cut: bool = False
    """Whether the process ended in the middle of the last entry."""
    difference: Difference | None = None


Found = tuple[str, str, str]
"""Path, what was expected, what was got."""


class LogError(ValueError):
    """An entry that no scheduler has written; the text says which."""


def main(arguments: list[str]) -> int:
    """Replays a log; returns the exit code."""
    as_json = "--json" in arguments
    words = [word for word in arguments if word != "--json"]
    settings = load_settings(ReplaySettings, words)
    try:
        with Path(settings.log).open("rb") as file:
            report = replay(file)
    except OSError as error:
        raise SetupError(f"cannot read {settings.log}: {error.strerror}") from None
    except LogError as error:
        raise SetupError(f"{settings.log} is no replay log: {error}") from None
    print(json.dumps(asdict(report)) if as_json else describe(report))  # noqa: T201
    return 1 if report.difference else 0


def replay(file: BinaryIO) -> Report:
    """Replays a log up to its end or the first difference; raises LogError."""
    report = Report()
    run: _Run | None = None
    number = 0
    try:
        for number, entry in enumerate(read_entries(file), 1):
            if entry is None:
                report.is_cut = True
            elif entry.HasField("start"):
                run = _Run(entry.start)
                report.num_runs += 1
            elif run is None:
                raise ValueError("the log does not begin with the start of a scheduler")
            elif entry.HasField("full"):
                report.is_full = True
            elif difference := run.replay(entry, number, report):
                report.difference = difference
                break
    except (LookupError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise LogError(f"entry {number or 1}: {reason}") from error
    if report.num_runs == 0:
        raise LogError("it is empty")
    return report


class _Run:
    """What one process did, done again."""

    def __init__(self, start: journal_pb2.JournalStart) -> None:
        if start.format != FORMAT:
            raise ValueError(f"the format is {start.format}, this version reads {FORMAT}")
        self._settings = SchedulerSettings.model_validate_json(start.settings)
        self.dispatcher = Dispatcher()
        self._workers: dict[str, Worker] = {}
        self._evacuated: dict[str, Request] = {}

    def replay(
        self, entry: journal_pb2.JournalEntry, number: int, report: Report
    ) -> Difference | None:
        """Does what an entry says and counts it; returns what came out differently."""
        event = entry.WhichOneof("event")
        if event is None:
            raise ValueError("it has no event")
        value: object
        try:
            value = _CALLS[event](self, entry)
        except Exception as error:  # Whatever it is: the log has it too, or it is the difference.
            value = error
        report.num_entries += 1
        report.num_plans += isinstance(value, worker_pb2.ExecuteRequest)
        report.num_outputs += event == "result"
        if entry.HasField("plan") and isinstance(value, worker_pb2.ExecuteRequest):
            found = _find_difference(entry.plan, value)
        elif entry.HasField("plan"):
            found = "plan", "a plan", reprlib.repr(value)
        elif checksum(value) != entry.outcome:
            found = "outcome", f"checksum {entry.outcome:08x}", reprlib.repr(value)
        else:
            found = None
        return None if found is None else Difference(number, event, *found)

    def add(self, entry: journal_pb2.JournalEntry) -> None:
        """Adds a request."""
        new = new_request(entry.added, entry.owner)
        self.dispatcher.add(replace(new, is_followed=entry.is_followed), entry.now)

    def adopt(self, entry: journal_pb2.JournalEntry) -> list[Ended]:
        """Lets requests go on that lost workers had."""
        ids = entry.adopted.request_ids
        return self.dispatcher.adopt([self._evacuated.pop(each) for each in ids])

    def worker(self, entry: journal_pb2.JournalEntry) -> Worker:
        """Returns the worker that an entry is of; raises LookupError if it was not reached."""
        return self._workers[entry.worker]

    def reach(self, entry: journal_pb2.JournalEntry) -> list[Ended]:
        """Lets a worker take part."""
        name = entry.worker
        worker = self._workers.setdefault(name, Worker(Peer(name, name)))
        ended = worker.begin(describe_worker(entry.reached, self._settings))
        self.dispatcher.join(worker)
        return ended

    def lose(self, entry: journal_pb2.JournalEntry) -> list[Request] | list[Ended]:
        """Takes the requests from a worker, or ends them."""
        worker = self.worker(entry)
        worker.is_connected = False
        if entry.lost.reason:
            return self.dispatcher.fail(worker, entry.lost.reason)
        requests = self.dispatcher.evacuate([worker])
        self._evacuated |= {request.request_id: request for request in requests}
        return requests

    def close(self, entry: journal_pb2.JournalEntry) -> SchedulerStats:
        """Forgets a worker; returns its totals."""
        return self._workers.pop(entry.worker).scheduler.stats


_CALLS: dict[str, Callable[[_Run, journal_pb2.JournalEntry], object]] = {
    "reached": _Run.reach,
    "lost": _Run.lose,
    "adopted": _Run.adopt,
    "left": lambda run, entry: run.dispatcher.leave(run.worker(entry)),
    "added": _Run.add,
    "aborted": lambda run, entry: run.dispatcher.abort(entry.aborted),
    "priority": lambda run, entry: run.dispatcher.set_priority(
        entry.priority.request_id, entry.priority.priority
    ),
    "windows": lambda run, entry: run.dispatcher.take_windows(entry.windows.windows),
    "paused": lambda run, entry: run.dispatcher.pause(PAUSE_MODES[entry.paused]),
    "resumed": lambda run, entry: run.dispatcher.resume(),
    "prepared": lambda run, entry: run.worker(entry).prepare(),
    "scheduled": lambda run, entry: run.worker(entry).schedule(entry.now),
    "result": lambda run, entry: run.worker(entry).settle(step_result(entry.result), entry.result),
    "closed": _Run.close,
}


def _find_difference(expected: Message, got: Message, path: str = "plan") -> Found | None:
    """Returns the first field that differs, by its path; None if all are equal.

    Of a column, that is the first row.
    """
    if expected == got:
        return None
    for field in expected.DESCRIPTOR.fields:
        left, right = getattr(expected, field.name), getattr(got, field.name)
        if left == right:
            continue
        name = f"{path}.{field.name}"
        if isinstance(left, bytes):
            return _find_row(left, right, name)
        if field.message_type is None:
            return name, str(left), str(right)
        if isinstance(left, Message):
            return _find_difference(left, right, name)
        for row, (one, other) in enumerate(zip(left, right, strict=False)):
            if found := _find_difference(one, other, f"{name}[{row}]"):
                return found
        return name, f"{len(left)} of them", str(len(right))
    return path, str(expected), str(got)


def _find_row(left: bytes, right: bytes, name: str) -> Found:
    """Returns the first row of two columns that differs."""
    try:
        rows = enumerate(zip_longest(from_bytes(left).tolist(), from_bytes(right).tolist()))
    except ValueError:
        return name, str(left), str(right)
    row, (one, other) = next((row, both) for row, both in rows if both[0] != both[1])
    return f"{name}[{row}]", str(one), str(other)


def describe(report: Report) -> str:
    """Returns what a person reads: one line, and one more for each thing worth knowing."""
    plural = "" if report.num_runs == 1 else f", {report.num_runs} runs of the scheduler"
    counts = f"plans {report.num_plans}, outputs {report.num_outputs}"
    found = report.difference
    if found is None:
        lines = [f"{counts}, identical{plural}"]
    else:
        lines = [
            f"entry {found.entry}, {found.event}, {found.field}: expected {found.expected}, "
            f"got {found.got}   (after {counts}{plural})"
        ]
    if report.is_cut:
        lines.append("the last entry is cut off: the process ended there")
    if report.is_full:
        lines.append("the log reached its bound and ends before the scheduler did")
    return "\n".join(lines)
