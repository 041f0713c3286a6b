"""The command: which cells are computed, and of which texts."""

import os
import time
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from optimist_bench.harness.command import names, numbers, run_command
from optimist_bench.harness.pair import load_tokenizer
from optimist_bench.never_worse.curves import CURVES
from optimist_bench.never_worse.grid import SCENARIOS, find_cells, run_cells
from optimist_bench.never_worse.record import record
from optimist_bench.never_worse.report import describe, make_report
from optimist_bench.never_worse.texts import (
    WORKLOADS,
    Texts,
    generate_texts,
    load_texts,
    save_texts,
)
from optimist_common.settings import CommaSeparated, ServiceSettings
from optimist_scheduler.core.requests.config import DraftWidthPolicy

_QUICK = {"rows": ["1", "8"], "scenarios": ["none"]}


class NeverWorseSettings(ServiceSettings):
    """Finds loads that drafts make slower: tokens per time with drafts, of those without.

    The grid is computed in virtual time, on the cores of scheduler, proposer and worker. Without
    --json the report is a table in Markdown: the worst ratio and the median.
    """

    section: ClassVar[str] = "bench_never_worse"

    workloads: Annotated[CommaSeparated, names(WORKLOADS, required=True)] = Field(
        list(WORKLOADS), description="workloads, with commas"
    )
    rows: Annotated[CommaSeparated, numbers(1, 256)] = Field(
        ["1", "4", "8", "16", "32", "64"], description="requests at a time, with commas"
    )
    curves: Annotated[CommaSeparated, names(tuple(CURVES))] = Field(
        list(CURVES), description="machines by what their passes cost, with commas"
    )
    scenarios: Annotated[CommaSeparated, names(SCENARIOS)] = Field(
        list(SCENARIOS), description="what disturbs the runs, with commas"
    )
    quick: bool = Field(False, description="1 and 8 requests at a time, undisturbed: true or false")
    cases: str = Field("", description="file with recorded texts; empty: generated ones")
    record: str = Field(
        "", description="file to write texts to that --model answers, to simulate these"
    )
    model: str = Field("models/smollm2", description="directory of the model that is served")
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="number format of its weights: float32 or bfloat16"
    )
    files: str = Field(
        "",
        description="what is rewritten: a directory of text files, or JSON lines with `before`; "
        "empty: sources of this package",
    )
    tokenizer: str = Field(
        "models/tiny-edit/tokenizer.json", description="tokenizer of generated texts"
    )
    draft_width: DraftWidthPolicy = Field("goodput", description="the scheduler's policy")
    processes: int = Field(0, ge=0, le=1024, description="processes of the grid; 0: cores")


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    return run_command(NeverWorseSettings, arguments, measure, describe)


def measure(settings: NeverWorseSettings) -> dict[str, Any]:
    """Runs all cells and returns the report."""
    started = time.monotonic()
    rows = _QUICK["rows"] if settings.quick else settings.rows
    scenarios = _QUICK["scenarios"] if settings.quick else settings.scenarios
    cells = list(find_cells(settings.workloads, list(map(int, rows)), settings.curves, scenarios))
    num_processes = settings.processes or len(os.sched_getaffinity(0))
    found = list(run_cells(cells, _find_texts(settings), settings.draft_width, num_processes))
    return make_report(found, time.monotonic() - started)


def _find_texts(settings: NeverWorseSettings) -> Texts:
    if settings.record:
        texts = record(settings.model, settings.dtype, settings.files)
        save_texts(texts, settings.record)
        return texts
    if settings.cases:
        return load_texts(settings.cases)
    return generate_texts(settings.tokenizer, load_tokenizer(settings.tokenizer))
