"""`optimist replay LOG`: feeds a scheduler what its log says, and compares what comes out."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, ClassVar

from pydantic import Field

from optimist_common.errors import SetupError
from optimist_common.settings import ServiceSettings, load_settings
from optimist_scheduler.core.requests.plan import Plan
from optimist_scheduler.core.scheduler import PauseMode, Scheduler
from optimist_scheduler.core.values.output import StepOutputs
from optimist_scheduler.journal.journal import FULL
from optimist_scheduler.journal.journal_difference import find_difference
from optimist_scheduler.journal.journal_line import (
    FORMAT,
    Json,
    read_request,
    read_result,
    read_window,
    read_worker,
    write_error,
    write_line,
    write_value,
)
from optimist_scheduler.journal.journal_request import read_moved

MAX_LINE_BYTES = 64 * 1024 * 1024


class ReplaySettings(ServiceSettings):
    """Replays a log of --replay-log: optimist replay LOG [--json].

    The exit code is 0 if every plan and every output comes out again as it is in the log, 1 if one
    does not, 2 if the file is no such log.
    """

    section: ClassVar[str] = "replay"

    log: str = Field(description="the log; also the first argument")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that came out differently."""

    line: int
    call: str
    field: str
    """Path to the value, with the row for a column."""
    expected: object
    """What the log says."""
    got: object


@dataclass(slots=True)
class Report:
    """What a log holds, and whether it came out again."""

    num_runs: int = 0
    """Starts of the scheduler that appended to the log."""
    num_calls: int = 0
    num_plans: int = 0
    num_outputs: int = 0
    """Results that were settled."""
    is_full: bool = False
    """Whether the log ends at its bound, before the scheduler did."""
    cut_lines: list[int] = field(default_factory=list)
    """Lines in the middle of which a process ended."""
    difference: Difference | None = None


class LogError(ValueError):
    """A line that no scheduler has written; the text says which."""


# Reads the arguments of a call, and returns the call with them.
_CALLS: dict[str, Callable[[Scheduler, Json], Callable[[], object]]] = {
    "add": lambda core, line: partial(
        core.add, read_request(line["new"]), line["now"], line["arrival"]
    ),
    "abort": lambda core, line: partial(core.abort, line["request_id"]),
    "set_priority": lambda core, line: partial(
        core.set_priority, line["request_id"], line["priority"]
    ),
    "set_window": lambda core, line: partial(
        core.set_window, line["request_id"], read_window(line["window"])
    ),
    "pause": lambda core, line: partial(core.pause, PauseMode(line["mode"])),
    "resume": lambda core, line: core.resume,
    "prepare": lambda core, line: core.prepare,
    "schedule": lambda core, line: partial(core.schedule, line["now"]),
    "settle": lambda core, line: partial(core.settle, read_result(line["result"])),
    "restart": lambda core, line: partial(core.restart, *read_worker(line)),
    "evacuate": lambda core, line: core.evacuate,
    "adopt": lambda core, line: partial(core.adopt, read_moved(line["moved"])),
    "close": lambda core, line: lambda: core.stats,
}


def main(arguments: list[str]) -> int:
    """Replays a log; returns the exit code."""
    as_json = "--json" in arguments
    words = [word for word in arguments if word != "--json"]
    if words and not words[0].startswith("-"):
        words = ["--log", *words]
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
    scheduler: Scheduler | None = None
    for number, line in _lines(file, report):
        try:
            if "format" in line:
                scheduler = _begin(line)
                report.num_runs += 1
            elif scheduler is None:
                raise LogError("it does not begin with a scheduler's configuration")
            elif line["call"] == FULL["call"]:
                report.is_full = True
            else:
                report.difference = _replay_call(scheduler, line, number, report)
        except (KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise LogError(f"line {number}: {type(error).__name__}: {reason}") from error
        if report.difference:
            break
    if report.num_runs == 0:
        raise LogError("it is empty")
    return report


def _lines(file: BinaryIO, report: Report) -> Iterator[tuple[int, Json]]:
    """Iterates over lines with their numbers; one that a process did not end may end a run."""
    cut: LogError | None = None
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            raise LogError(f"line {number} has more than {MAX_LINE_BYTES} bytes")
        line = _parse(raw)
        if cut is not None and (line is None or "format" not in line):
            raise cut
        cut = None
        if line is not None:
            yield number, line
        elif report.num_runs:
            report.cut_lines.append(number)
            cut = LogError(f"line {number} is not a JSON object")
        else:
            raise LogError(f"line {number} is not a JSON object")


def _parse(raw: bytes) -> Json | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _begin(line: Json) -> Scheduler:
    if line["format"] != FORMAT:
        raise ValueError(f"the format is {line['format']}, this version reads {FORMAT}")
    return Scheduler(*read_worker(line))


def _replay_call(
    scheduler: Scheduler, line: Json, number: int, report: Report
) -> Difference | None:
    """Makes the call of a line; returns what came out differently."""
    call = line["call"]
    expected = {name: line[name] for name in ("out", "raised") if name in line}
    if call not in _CALLS or len(expected) != 1:
        raise ValueError(f"{call!r} is no call with an outcome")
    run = _CALLS[call](scheduler, line)
    try:
        value = run()
    except Exception as error:  # Whatever it is: the log has it too, or it is the difference.
        written = write_error(error)
    else:
        written = write_value(value)
        report.num_plans += isinstance(value, Plan)
        report.num_outputs += isinstance(value, StepOutputs)
    report.num_calls += 1
    found = find_difference(expected, json.loads(write_line(written)))
    return None if found is None else Difference(number, call, *found)


def describe(report: Report) -> str:
    """Returns what a person reads: one line, and one more for each thing worth knowing."""
    plural = "" if report.num_runs == 1 else f", {report.num_runs} runs of the scheduler"
    counts = f"plans {report.num_plans}, outputs {report.num_outputs}"
    found = report.difference
    if found is None:
        lines = [f"{counts}, identical{plural}"]
    else:
        lines = [
            f"line {found.line}, {found.call}, {found.field}: expected {found.expected}, "
            f"got {found.got}   (after {counts}{plural})"
        ]
    lines += [f"line {line} is cut off: the process ended there" for line in report.cut_lines]
    if report.is_full:
        lines.append("the log reached its bound and ends before the scheduler did")
    return "\n".join(lines)
