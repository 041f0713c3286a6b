"""The command: which cells are computed, and of which texts."""

import os
import sys
import time
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from optimist_bench.harness.command import names, numbers, run_command
from optimist_bench.harness.pair import load_tokenizer
from optimist_bench.never_worse.curves import CURVES
from optimist_bench.never_worse.grid import SCENARIOS, find_cells, run_cells
from optimist_bench.never_worse.real import RealRun, run_for_real
from optimist_bench.never_worse.record import record
from optimist_bench.never_worse.report import describe, make_report, name_cell
from optimist_bench.never_worse.texts import (
    WORKLOADS,
    Texts,
    generate_texts,
    load_texts,
    save_texts,
)
from optimist_common.settings import CommaSeparated, ServiceSettings
from optimist_scheduler.core.width.widths import DraftWidthPolicy


class NeverWorseSettings(ServiceSettings):
    """Finds loads that drafts make slower: tokens per time with drafts, of those without.

    First the model answers all requests. A grid of cells is computed in virtual time with these
    answers, on the cores of scheduler, proposer and worker; then two servers of the model, with
    drafts and without, are asked the same in turn. Without --json the report is a table in
    Markdown: the worst ratio and the median.
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
    model: str = Field(
        "models/smollm2",
        description="directory of the model; empty: texts are generated, and nothing is served",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="number format of its weights: float32 or bfloat16"
    )
    files: str = Field(
        "",
        description="what is rewritten: a directory of text files, or JSON lines with `before`; "
        "empty: sources of this package",
    )
    record: str = Field("", description="file to write the requests and answers of the grid to")
    cases: str = Field("", description="such a file, to compute the grid of it again")
    tokenizer: str = Field(
        "models/tiny-edit/tokenizer.json", description="tokenizer of generated texts"
    )
    draft_width: DraftWidthPolicy = Field("goodput", description="the scheduler's policy in cells")
    processes: int = Field(0, ge=0, le=1024, description="processes of the grid; 0: cores")
    turns: int = Field(
        3, ge=0, le=100, description="how often real servers are asked; 0: only the grid"
    )
    real_rows: Annotated[CommaSeparated, numbers(1, 256)] = Field(
        ["1", "8", "16"], description="requests at a time of real servers, with commas"
    )
    num_threads: int = Field(0, ge=0, le=1024, description="CPU threads of servers; 0: cores")


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code: 1 if two texts that are to be equal differ."""
    return run_command(NeverWorseSettings, arguments, measure, describe)


def measure(settings: NeverWorseSettings) -> dict[str, Any]:
    """Runs all cells and returns the report."""
    texts = _find_texts(settings)
    started = time.monotonic()
    rows = [int(each) for each in settings.rows]
    cells = list(find_cells(settings.workloads, rows, settings.curves, settings.scenarios))
    num_cores = len(os.sched_getaffinity(0))
    num_processes = settings.processes or num_cores
    found = []
    for cell in run_cells(cells, texts, settings.draft_width, num_processes):
        found.append(cell)
        print(f"{name_cell(cell)}: {cell['ratio']:.3f}", file=sys.stderr)
    if settings.model and settings.turns:
        real = RealRun(
            model=settings.model,
            dtype=settings.dtype,
            files=settings.files,
            workloads=settings.workloads,
            rows=[int(each) for each in settings.real_rows],
            turns=settings.turns,
            num_threads=settings.num_threads or num_cores,
        )
        found += run_for_real(real)
    return make_report(found, time.monotonic() - started)


def _find_texts(settings: NeverWorseSettings) -> Texts:
    if settings.cases:
        return load_texts(settings.cases)
    if not settings.model:
        return generate_texts(settings.tokenizer, load_tokenizer(settings.tokenizer))
    texts = record(settings.model, settings.dtype, settings.files)
    if settings.record:
        save_texts(texts, settings.record)
    return texts
