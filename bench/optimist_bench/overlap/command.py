"""`optimist bench overlap`: how much of the scheduler's time is hidden by the worker's."""

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import groupby, product
from statistics import median
from typing import Annotated, Any, ClassVar

import uvloop
from pydantic import Field

from optimist_bench.harness.command import format_table, numbers, run_command
from optimist_bench.harness.simulated_service import simulated_worker
from optimist_bench.overlap.run import STALL_EVERY, STALL_US, Configuration, Figures, Run
from optimist_cli.serve.ports import free_ports
from optimist_common.process import collecting_seldom
from optimist_common.settings import CommaSeparated, ServiceSettings

TOLERANCE = 0.02
"""How much slower pre-scheduling may be in the median over all pairs of runs."""


class OverlapSettings(ServiceSettings):
    """Measures how long a simulated worker waits for its scheduler, by mode and depth."""

    section: ClassVar[str] = "bench_overlap"

    seconds: float = Field(1.4, gt=0, le=8, description="time per configuration, in two parts")
    step_us: Annotated[CommaSeparated, numbers(1, 1_000_000)] = Field(
        ["800", "4000"], description="how long the worker's steps take, in microseconds"
    )
    depths: Annotated[CommaSeparated, numbers(1, 3)] = Field(
        ["1", "2", "3"], description="plans in flight, 1 to 3"
    )


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""

    def run(settings: OverlapSettings) -> dict[str, Any]:
        return measure(choose_configurations(settings), settings.seconds)

    return run_command(OverlapSettings, arguments, run, describe)


def choose_configurations(settings: OverlapSettings) -> list[Configuration]:
    """Returns what is run with pre-scheduling on; those with the same worker adjoin."""
    chosen: list[Configuration] = []
    for step_us, stalls in product(settings.step_us, ("none", "worker", "scheduler")):
        for depth in settings.depths:
            one = Configuration(int(step_us), int(depth), stalls=stalls)
            chosen.append(one)
            if stalls == "none":
                chosen += [replace(one, windows=how) for how in ("seldom", "each step")]
                chosen.append(replace(one, commands=True))
    return chosen


def measure(configurations: Iterable[Configuration], seconds: float) -> dict[str, Any]:
    """Runs the configurations, for some time each, and returns the report.

    Those with a plain load run with pre-scheduling on, off, off and on again, so that what changes
    on the machine meanwhile meets both alike; each half is one pair.
    """
    # As in a scheduler that has run for a while, what was imported is not gone through any more.
    gc.collect()
    with collecting_seldom():
        # One loop for all runs: gRPC does not bear another one.
        figures = uvloop.run(_measure(configurations, seconds / 2))
    return summarise(figures)


async def _measure(
    configurations: Iterable[Configuration], seconds: float
) -> dict[Configuration, list[Figures]]:
    figures: dict[Configuration, list[Figures]] = {}
    for _, group in groupby(configurations, lambda each: (each.step_us, each.stalls)):
        members = list(group)
        with _worker(members[0]) as (address, metrics_port):
            for configuration in members:
                for one in _order(configuration):
                    print(one.name, file=sys.stderr)
                    run = Run(one, address, metrics_port)
                    figures.setdefault(one, []).append(await run.measure(seconds))
    return figures


@contextmanager
def _worker(configuration: Configuration) -> Iterator[tuple[str, int]]:
    """Runs the worker; yields its address and the port of its metrics."""
    stalls = configuration.stalls == "worker"
    (metrics_port,) = free_ports(1)
    with simulated_worker(
        metrics_port=metrics_port,
        step_us=configuration.step_us,
        stall_every=STALL_EVERY if stalls else 0,
        stall_us=STALL_US if stalls else 0,
    ) as address:
        yield address, metrics_port


def _order(on: Configuration) -> list[Configuration]:
    """Returns the runs of a configuration and, if it is compared, of the one without."""
    if on.commands:
        return [on, on]
    off = replace(on, optimistic=False)
    return [on, off, off, on]


def summarise(figures: dict[Configuration, list[Figures]]) -> dict[str, Any]:
    """Returns the report on runs by configuration."""
    totals = {one: reduce(Figures.plus, runs) for one, runs in figures.items()}
    ratios = {one: _ratios(one, figures) for one in figures if one.optimistic}
    steady = [one for one in totals if _is_steady(one)]
    disturbed = [total for one, total in totals.items() if one.commands]
    all_ratios = [ratio for some in ratios.values() for ratio in some]
    return {
        "steady_hit_rate": _share(
            [totals[one] for one in steady if one.windows != "each step"], "num_hits", "num_plans"
        ),
        "steady_hit_rate_with_proposer": _share(
            [totals[one] for one in steady if one.windows == "each step"], "num_hits", "num_plans"
        ),
        "recomputed_rows": _share(disturbed, "num_recomputed_rows", "num_prescheduled_rows"),
        "never_slower": bool(all_ratios) and median(all_ratios) >= 1 - TOLERANCE,
        "throughput_ratio": round(median(all_ratios), 4) if all_ratios else None,
        "num_pairs": len(all_ratios),
        "configurations": {
            one.name: {
                "step_us": one.step_us,
                "depth": one.depth,
                "optimistic": one.optimistic,
                "stalls": one.stalls,
                "windows": one.windows,
                "commands": one.commands,
                # What was idle when a run began counts whole.
                "idle_share": min(_share([total], "idle_seconds", "seconds"), 1.0),
                "steps_per_second": round(total.num_steps / total.seconds, 1),
                "hit_rate": _share([total], "num_hits", "num_plans"),
                "recomputed_rows": _share([total], "num_recomputed_rows", "num_prescheduled_rows"),
                "throughput_ratio": round(median(ratios[one]), 4) if ratios.get(one) else None,
            }
            for one, total in totals.items()
        },
    }


def _is_steady(one: Configuration) -> bool:
    """Returns whether pre-scheduling is on and nothing disturbs the engine."""
    return one.optimistic and one.stalls == "none" and not one.commands


def _ratios(on: Configuration, figures: dict[Configuration, list[Figures]]) -> list[float]:
    """Returns steps per second with pre-scheduling over those without, pair by pair."""
    off = figures.get(replace(on, optimistic=False), [])
    rates = [[run.num_steps / run.seconds for run in runs] for runs in (figures[on], off)]
    return [a / b for a, b in zip(*rates, strict=False)]


def _share(figures: Sequence[Figures], part: str, whole: str) -> float:
    total = sum(getattr(one, whole) for one in figures)
    return round(sum(getattr(one, part) for one in figures) / total, 4) if total else 0.0


def describe(report: dict[str, Any]) -> str:
    """Returns the report as a table, a line per configuration."""
    rows = [
        (
            name,
            one["idle_share"],
            one["steps_per_second"],
            one["hit_rate"],
            one["recomputed_rows"],
            "" if one["throughput_ratio"] is None else f"{one['throughput_ratio']:.3f}",
        )
        for name, one in report["configurations"].items()
    ]
    header = ("worker's step, plans, pre-scheduling", "idle", "steps/s", "hits", "recomputed")
    ratio = report["throughput_ratio"]
    return "\n".join(
        [
            format_table((*header, "on/off"), rows),
            f"decisions made ahead and sent as they were, in steady decode: "
            f"{report['steady_hit_rate']:.1%}, with a window for each row at each step "
            f"{report['steady_hit_rate_with_proposer']:.1%}",
            f"rows that were computed again, dropped or added, with a command at every third step: "
            f"{report['recomputed_rows']:.1%}",
            f"steps per second, pre-scheduling on against off: "
            f"{'not compared' if ratio is None else f'{ratio:.3f}'} in the median of "
            f"{report['num_pairs']} pairs",
        ]
    )
