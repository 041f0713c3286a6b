"""`optimist replay LOG`: feeds a scheduler what its log says, and compares what comes out."""

import reprlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np
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
    """Replays a log of --replay-log.

    The exit code is 0 if every plan and every output comes out again as it is in the log, 1 if one
    does not, 2 if the file is no such log.
    """

    section: ClassVar[str] = "replay"
    arguments: ClassVar[tuple[str, ...]] = ("log",)

    log: str = Field(description="the log")


@dataclass(slots=True)
class Report:
    """What a log holds, and whether it came out again."""

    num_runs: int = 0
    """Starts of the scheduler that appended to the log."""
    num_plans: int = 0
    num_outputs: int = 0
    """Results that were settled."""
    is_full: bool = False
    """Whether the log ends at its bound, before the scheduler did."""
    is_cut: bool = False
    """Whether the process ended in the middle of the last entry."""
    difference: str = ""
    """The first thing that came out differently; empty if nothing did."""

    def describe(self) -> str:
        """Returns what a person reads: a line, and one more for each thing worth knowing."""
        runs = "" if self.num_runs == 1 else f", {self.num_runs} runs of the scheduler"
        counts = f"plans {self.num_plans}, outputs {self.num_outputs}"
        lines = [f"{counts}, identical{runs}"]
        if self.difference:
            lines = [f"{self.difference}   (after {counts}{runs})"]
        if self.is_cut:
            lines.append("the last entry is cut off: the process ended there")
        if self.is_full:
            lines.append("the log reached its bound and ends before the scheduler did")
        return "\n".join(lines)


class LogError(ValueError):
    """An entry that no scheduler has written; the text says which."""


def main(arguments: list[str]) -> int:
    """Replays a log; returns the exit code."""
    settings = load_settings(ReplaySettings, arguments)
    try:
        with Path(settings.log).open("rb") as file:
            report = replay(file)
    except OSError as error:
        raise SetupError(f"cannot read {settings.log}: {error.strerror}") from None
    except LogError as error:
        raise SetupError(f"{settings.log} is no replay log: {error}") from None
    print(report.describe())  # noqa: T201
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
            elif difference := run.replay(entry, report):
                report.difference = f"entry {number}, {difference}"
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

    def replay(self, entry: journal_pb2.JournalEntry, report: Report) -> str:
        """Does what an entry says and counts it; returns what came out differently."""
        event = entry.WhichOneof("event")
        if event is None:
            raise ValueError("it has no event")
        value: object
        try:
            value = _CALLS[event](self, entry)
        except Exception as error:  # Whatever it is: the log has it too, or it is the difference.
            value = error
        report.num_plans += isinstance(value, worker_pb2.ExecuteRequest)
        report.num_outputs += event == "result"
        if entry.HasField("plan"):
            if not isinstance(value, worker_pb2.ExecuteRequest):
                return f"{event}, plan: expected a plan, got {reprlib.repr(value)}"
            found = _find_difference(entry.plan, value)
            return found and f"{event}, {found}"
        if checksum(value) != entry.outcome:
            return (
                f"{event}, outcome: expected checksum {entry.outcome:08x}, "
                f"got {reprlib.repr(value)}"
            )
        return ""

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


def _find_difference(expected: Message, got: Message) -> str:
    """Returns the first field of plans that differs, of a column with the first row."""
    for field in expected.DESCRIPTOR.fields:
        left, right = getattr(expected, field.name), getattr(got, field.name)
        if left == right:
            continue
        name = f"plan.{field.name}"
        if isinstance(left, bytes) and len(left) == len(right):
            one, other = from_bytes(left), from_bytes(right)
            row = int(np.argmax(one != other))
            return f"{name}[{row}]: expected {one[row]}, got {other[row]}"
        return f"{name}: expected {reprlib.repr(left)}, got {reprlib.repr(right)}"
    return ""
