"""The command: which engines, workloads and numbers of streams are measured, and in which order."""

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from optimist_bench.engines.asking import asking_engine
from optimist_bench.engines.options import EngineOptions, describe_setup
from optimist_bench.engines.report import Key, Measured, make_rows, sent_key
from optimist_bench.engines.tables import combine, describe
from optimist_bench.engines.workloads import (
    FREE,
    WORKLOADS,
    Prompt,
    digest,
    make_prompts,
    sent_workload,
)
from optimist_bench.harness.command import names, run_command
from optimist_common.errors import SetupError
from optimist_common.settings import CommaSeparated


class EnginesSettings(EngineOptions):
    """Measures servers, ours and others, with the same requests over HTTP.

    In each turn every engine is started, warmed up, asked all workloads and ended; every second
    turn has the engines in reverse order, so that a drift of the machine shows as spread. Without
    --json the report is tables in Markdown.
    """

    section: ClassVar[str] = "bench_engines"

    workloads: Annotated[CommaSeparated, names(WORKLOADS, required=True)] = Field(
        list(FREE), description="workloads to measure, with commas"
    )
    prompts: int = Field(
        4,
        ge=1,
        le=1000,
        description="requests of a workload and round; but as many as there are streams",
    )
    files: str = Field(
        "",
        description="what is rewritten: a directory of text files, or JSON lines with `before`; "
        "empty: sources of this package",
    )
    max_tokens: int = Field(
        256,
        ge=1,
        le=4096,
        description="most tokens of an answer, or of all answers of an agent's conversation",
    )
    keep_running: bool = Field(
        False,
        description="start all engines once, and ask one after the other each workload while the "
        "others wait: needs the memory of all of them",
    )
    plot: str = Field("", description="SVG file to draw the tokens per second to")
    report: CommaSeparated = Field(
        [],
        description="files with reports as by --json, of different engines, with commas: "
        "to print and draw as one, not measured",
    )


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""

    def run(settings: EnginesSettings) -> dict[str, Any]:
        if settings.report:
            report = combine([_read(path) for path in settings.report])
        else:
            report = measure(settings, arguments)
        if settings.plot:
            # Only who draws needs Matplotlib.
            from optimist_bench.engines.plot import draw

            draw(report, Path(settings.plot))
        return report

    return run_command(EnginesSettings, arguments, run, describe)


def _read(path: str) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"--report: {path} cannot be read: {error}") from None
    if not isinstance(report, dict) or "rows" not in report:
        raise SetupError(f"--report: {path} is no report of this benchmark")
    return report


def measure(settings: EnginesSettings, arguments: Sequence[str]) -> dict[str, Any]:
    """Measures all engines in turns and returns the report.

    Args:
        settings: What to measure.
        arguments: The command line, for the report.

    Raises:
        SetupError: A file is missing, an engine does not start, or a request fails.
    """
    settings.require()
    streams = settings.sorted_streams
    # Fewer streams are asked the first of them.
    prompts = {
        key.workload: make_prompts(key.workload, settings.files, settings.prompts, streams[-1])
        for name in settings.engines
        for key in _asked(settings, name)
    }
    started = time.monotonic()
    with ExitStack() as stack:
        measured = _measure_turns(settings, prompts, stack)
    return {
        "command": shlex.join(["optimist", "bench", "engines", *arguments]),
        **describe_setup(settings),
        "max_tokens": settings.max_tokens,
        "keep_running": settings.keep_running,
        "prompts": {name: len(each) for name, each in prompts.items()},
        "prompts_digest": {name: digest(each) for name, each in prompts.items()},
        "seconds": round(time.monotonic() - started, 1),
        "rows": make_rows(measured, settings.engines, settings.workloads, streams),
    }


def _asked(settings: EnginesSettings, name: str) -> list[Key]:
    """Returns how an engine is asked: what is the same to it only once."""
    return list(
        dict.fromkeys(
            sent_key(name, workload, streams)
            for workload in settings.workloads
            for streams in settings.sorted_streams
        )
    )


def _order(settings: EnginesSettings, turn: int) -> list[Key]:
    """Returns how the engines are asked in a turn, one engine after the other.

    Those that keep running are asked the same right after each other, as the machine drifts.
    """
    engines = settings.engines if turn % 2 else settings.engines[::-1]
    keys = [key for name in engines for key in _asked(settings, name)]
    if settings.keep_running:
        keys.sort(key=lambda key: (_without_predictions(key), key.streams))
    return keys


def _without_predictions(key: Key) -> int:
    return WORKLOADS.index(sent_workload(key.workload, takes_predictions=False))


def _measure_turns(
    settings: EnginesSettings, prompts: Mapping[str, list[Prompt]], stack: ExitStack
) -> Measured:
    kept = {
        name: stack.enter_context(asking_engine(name, settings))
        for name in settings.engines
        if settings.keep_running
    }
    measured: Measured = {}
    for turn in range(1, settings.turns + 1):
        for name, keys in groupby(_order(settings, turn), key=attrgetter("engine")):
            _say(f"turn {turn} of {settings.turns}: {name}")
            with nullcontext(kept[name]) if kept else asking_engine(name, settings) as asker:
                for key in keys:
                    asked = prompts[key.workload][: max(settings.prompts, key.streams)]
                    # Rounds repeat their prompts, but are to compute them.
                    salt = f"{turn} {key.workload} {key.streams}"
                    done = asker.ask_all(asked, key.streams, settings.max_tokens, salt)
                    _say(f"  {key.workload}, {key.streams} at a time: {done.seconds:.1f} s")
                    measured.setdefault(key, []).append(done)
    return measured


def _say(text: str) -> None:
    print(text, file=sys.stderr)
