"""The command: which engines, workloads and numbers of streams are measured, and in which order."""

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from optimist_bench.engines.asking import Asker
from optimist_bench.engines.report import Key, Measured, make_rows, sent_key
from optimist_bench.engines.servers import (
    ENGINES,
    find_vllm_version,
    require_model,
    require_vllm,
    running_engine,
)
from optimist_bench.engines.tables import combine, describe
from optimist_bench.engines.workloads import (
    FREE,
    WORKLOADS,
    Prompt,
    digest,
    make_prompts,
    sent_workload,
)
from optimist_bench.harness.command import names, numbers, run_command
from optimist_common.errors import SetupError
from optimist_common.settings import CommaSeparated, ServiceSettings

_WARM_UP_TOKENS = 8
_PACKAGES = ("optimist", "torch", "transformers")


class EnginesSettings(ServiceSettings):
    """Measures servers, ours and others, with the same requests over HTTP.

    In each turn every engine is started, warmed up, asked all workloads and ended; every second
    turn has the engines in reverse order, so that a drift of the machine shows as spread. Without
    --json the report is tables in Markdown.
    """

    section: ClassVar[str] = "bench_engines"

    engines: Annotated[CommaSeparated, names(tuple(ENGINES), required=True)] = Field(
        ["optimist", "optimist-plain", "transformers", "transformers-lookup"],
        description="engines to measure, with commas",
    )
    model: str = Field("models/smollm2", description="directory of the model that all serve")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="number format of the weights: float32, bfloat16 or float16"
    )
    vllm: str = Field(".venv-vllm", description="directory of the environment that has vLLM")
    streams: Annotated[CommaSeparated, numbers(1, 256)] = Field(
        ["1", "8"], description="numbers of requests at a time, with commas"
    )
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
    turns: int = Field(2, ge=1, le=100, description="how often all engines are measured")
    keep_running: bool = Field(
        False,
        description="start all engines once, and ask one after the other each workload while the "
        "others wait: needs the memory of all of them",
    )
    num_threads: int = Field(0, ge=0, le=1024, description="CPU threads of each engine; 0: cores")
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
    require_model(settings.model)
    require_vllm(settings.engines, settings.vllm)
    streams = _streams(settings)
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
        "model": settings.model,
        "dtype": settings.dtype,
        "cpu": _cpu(),
        "threads": _num_threads(settings),
        "turns": settings.turns,
        "max_tokens": settings.max_tokens,
        "keep_running": settings.keep_running,
        "prompts": {name: len(each) for name, each in prompts.items()},
        "prompts_digest": {name: digest(each) for name, each in prompts.items()},
        "versions": {"python": platform.python_version(), **_versions(settings)},
        "variables": {key: os.environ[key] for key in sorted(os.environ) if "OPTIMIST_" in key},
        "engines": {
            name: " ".join(
                ENGINES[name].words(settings.model, settings.dtype, settings.vllm, "PORT")
            )
            for name in settings.engines
        },
        "seconds": round(time.monotonic() - started, 1),
        "rows": make_rows(measured, settings.engines, settings.workloads, streams),
    }


def _asked(settings: EnginesSettings, name: str) -> list[Key]:
    """Returns how an engine is asked: what is the same to it only once."""
    return list(
        dict.fromkeys(
            sent_key(name, workload, streams)
            for workload in settings.workloads
            for streams in _streams(settings)
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
        name: stack.enter_context(_asking(settings, name))
        for name in settings.engines
        if settings.keep_running
    }
    measured: Measured = {}
    for turn in range(1, settings.turns + 1):
        for name, keys in groupby(_order(settings, turn), key=attrgetter("engine")):
            _say(f"turn {turn} of {settings.turns}: {name}")
            with nullcontext(kept[name]) if kept else _asking(settings, name) as asker:
                for key in keys:
                    asked = prompts[key.workload][: max(settings.prompts, key.streams)]
                    # Rounds repeat their prompts, but are to compute them.
                    salt = f"{turn} {key.workload} {key.streams}"
                    done = asker.ask_all(asked, key.streams, settings.max_tokens, salt)
                    _say(f"  {key.workload}, {key.streams} at a time: {done.seconds:.1f} s")
                    measured.setdefault(key, []).append(done)
    return measured


@contextmanager
def _asking(settings: EnginesSettings, name: str) -> Iterator[Asker]:
    """Starts an engine, warms it up with each number of streams, and ends it afterwards."""
    with (
        running_engine(
            name, settings.model, settings.dtype, settings.vllm, _num_threads(settings)
        ) as url,
        closing(Asker(name, url)) as asker,
    ):
        for streams in _streams(settings):
            asker.ask_all(_warm_up(streams), streams, _WARM_UP_TOKENS)
        yield asker


def _warm_up(num_prompts: int) -> list[Prompt]:
    return [Prompt(f"Count to {number}.") for number in range(num_prompts)]


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _streams(settings: EnginesSettings) -> list[int]:
    return sorted(map(int, settings.streams))


def _num_threads(settings: EnginesSettings) -> int:
    return settings.num_threads or len(os.sched_getaffinity(0))


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def _versions(settings: EnginesSettings) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    if any(ENGINES[name].needs_vllm for name in settings.engines):
        found["vllm"] = find_vllm_version(settings.vllm)
    return found
