"""`optimist bench scheduler`: what the scheduler's core costs, with results made up by chance."""

import gc
from collections.abc import Sequence
from dataclasses import fields
from statistics import mean, median
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from optimist_bench.harness.command import format_table, run_command
from optimist_bench.scheduler.drive import Drive, Times, time_exchanges
from optimist_common.process import collecting_seldom
from optimist_common.settings import ServiceSettings
from optimist_scheduler.core.base.values import SchedulerStats

CODEC_ROUNDS = 4
"""How often the last plans and results are coded."""
FIGURES = ("p50", "p99", "min", "mean")
"""What the table shows of each kind of time."""
WARM_UP_STEPS = 300
"""Steps after the last of the first requests was admitted: by then, cached blocks are evicted."""


class SchedulerBenchSettings(ServiceSettings):
    """Measures the scheduler's core alone: prepare, schedule, settle; and beside it the codec."""

    section: ClassVar[str] = "bench_scheduler"

    requests: int = Field(256, ge=1, le=4096, description="requests that run at once")
    draft_tokens: int = Field(4, ge=0, le=256, description="drafts per request and step")
    depth: int = Field(2, ge=1, le=3, description="plans in flight")
    steps: int = Field(1000, ge=1, le=1_000_000, description="steps that are measured")
    acceptance: float = Field(
        0.9995, ge=0, le=1, description="chance of each token to be the predicted one"
    )
    seed: int = Field(0, ge=0, description="seed of lengths and acceptance")


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    return run_command(SchedulerBenchSettings, arguments, measure, describe)


def measure(settings: SchedulerBenchSettings) -> dict[str, Any]:
    """Drives the core through a warm-up and the measured steps; returns the report.

    The garbage collector stays on, and looks as seldom as in the service.
    """
    drive = Drive(
        settings.requests,
        settings.draft_tokens,
        settings.depth,
        settings.acceptance,
        settings.seed,
    )
    while drive.scheduler.num_waiting or drive.scheduler.num_running < settings.requests // 2:
        drive.step()
    for _ in range(WARM_UP_STEPS):
        drive.step()
    gc.collect()
    drive.times = Times()
    before = _counts(drive.scheduler.stats)
    with collecting_seldom():
        for _ in range(settings.steps):
            drive.step()
    after = _counts(drive.scheduler.stats)
    counts = {name: after[name] - before[name] for name in before}
    codec = time_exchanges(drive.exchanges, drive.sizes, CODEC_ROUNDS)
    return _report(settings, drive.times, codec, counts)


def _counts(stats: SchedulerStats) -> dict[str, int]:
    names = [each.name for each in fields(stats) if each.name.startswith("num_")]
    return {name: getattr(stats, name) for name in names}


def _report(
    settings: SchedulerBenchSettings, times: Times, codec: list[int], counts: dict[str, int]
) -> dict[str, Any]:
    phases = list(zip(times.prepare, times.schedule, times.settle, strict=True))
    steps = [sum(phase) for phase in phases]
    num_rows = sum(times.num_rows)

    def of_row(nanoseconds: Sequence[int]) -> list[float]:
        return [ns / max(rows, 1) for ns, rows in zip(nanoseconds, times.num_rows, strict=True)]

    return {
        "requests": settings.requests,
        "draft_tokens": settings.draft_tokens,
        "depth": settings.depth,
        "steps": settings.steps,
        "acceptance": settings.acceptance,
        "us_per_request_step": _summary(of_row(steps)),
        "cpu_us_per_request_step": _summary(of_row(times.cpu)),
        "us_per_step": _summary(steps),
        "by_phase": {
            "prepare": _summary(times.prepare),
            "schedule": _summary(times.schedule),
            "settle": _summary(times.settle),
        },
        "codec_us": _summary(codec),
        "window_us": _summary(times.window),
        "add_us": _summary(times.add),
        "hits": round(counts["num_preschedule_hits"] / counts["num_plans"], 4),
        "recomputed_rows": round(
            counts["num_recomputed_rows"] / max(counts["num_prescheduled_rows"], 1), 4
        ),
        "prefix_hits": round(counts["num_prefix_hits"] / max(counts["num_prefix_queries"], 1), 4),
        "rows_per_step": round(num_rows / settings.steps, 1),
        "drafts_per_row": round(times.num_planned_drafts / num_rows, 3),
        "tokens_per_row": round(times.num_tokens / num_rows, 3),
        "windows_per_step": round(len(times.window) / settings.steps, 2),
        "replaced_per_step": round(len(times.add) / settings.steps, 3),
        "preemptions": counts["num_preemptions"],
    }


def _summary(nanoseconds: Sequence[float]) -> dict[str, float]:
    """Returns median, 99th percentile, smallest and mean in microseconds; empty without a value."""
    if not nanoseconds:
        return {}
    return {
        "p50": round(median(nanoseconds) / 1e3, 3),
        "p99": round(float(np.percentile(nanoseconds, 99)) / 1e3, 3),
        "min": round(min(nanoseconds) / 1e3, 3),
        "mean": round(mean(nanoseconds) / 1e3, 3),
    }


def describe(report: dict[str, Any]) -> str:
    """Returns the report as a table of microseconds, and what the load was like."""
    lines = {
        "per request and step": report["us_per_request_step"],
        "  processor time": report["cpu_us_per_request_step"],
        "per step": report["us_per_step"],
        **{f"  {name}": times for name, times in report["by_phase"].items()},
        "codec per step": report["codec_us"],
        "a window": report["window_us"],
        "a new request": report["add_us"],
    }
    rows = [
        (name, *(times[figure] for figure in FIGURES)) for name, times in lines.items() if times
    ]
    return "\n".join(
        [
            format_table(("us", *FIGURES), rows),
            f"{report['requests']} requests, {report['draft_tokens']} drafts, depth "
            f"{report['depth']}; per step {report['replaced_per_step']} requests end and others "
            f"begin ({report['prefix_hits']:.0%} of their prompts cached), "
            f"{report['windows_per_step']} windows are set, {report['tokens_per_row']} tokens "
            f"per row come out; {report['hits']:.1%} of the decisions went out as they were made "
            f"ahead, {report['recomputed_rows']:.1%} of their rows were computed again",
        ]
    )
