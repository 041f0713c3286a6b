"""`optimist bench crossover`: should speculation be on, at which batch size and acceptance?"""

import asyncio
import os
import sys
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from optimist_bench.crossover.load import Load, StepCosts, describe_costs
from optimist_bench.crossover.report import Point, describe, expect, summarise
from optimist_bench.harness.command import numbers, run_command
from optimist_bench.harness.services import address_of, open_stream, running, stack_specs
from optimist_cli.serve.settings import ServeSettings
from optimist_common.settings import CommaSeparated, ServiceSettings

WARM_UP_STEPS = 96
"""The scheduler chooses widths anew after each eighth."""


class CrossoverSettings(ServiceSettings):
    """Measures adaptive speculation against none, with drafts accepted by chance.

    --json prints the report as one line of JSON instead.
    """

    section: ClassVar[str] = "bench_crossover"

    model: str = Field("models/tiny-edit", description="model that is served")
    drafter: str = Field("draft_model", description="what drafts, as for the worker")
    drafts: int = Field(5, ge=1, le=64, description="most drafts of a request and pass")
    batch_sizes: Annotated[CommaSeparated, numbers(1, 64)] = Field(
        ["1", "2", "4", "8", "16"], description="requests at once, with commas"
    )
    rates: CommaSeparated = Field(
        ["0", "0.3", "0.5", "0.7", "0.9", "1"], description="chances of acceptance, with commas"
    )
    pairs: int = Field(6, ge=2, le=1000, description="measurements with and without, per point")
    slice_ms: int = Field(250, ge=10, le=60_000, description="time of one measurement, in ms")
    num_threads: int = Field(0, ge=0, le=1024, description="threads of a pass; 0: all cores")

    @field_validator("rates")
    @classmethod
    def _are_rates(cls, values: list[str]) -> list[str]:
        try:
            fits = [0.0 <= float(value) <= 1.0 for value in values]
        except ValueError:
            fits = []
        if not fits or not all(fits):
            raise ValueError("must be numbers from 0 to 1, with commas")
        return values


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    return run_command(CrossoverSettings, arguments, measure, describe)


def measure(settings: CrossoverSettings) -> dict[str, Any]:
    """Runs a worker for each acceptance rate and returns the report.

    Raises:
        SetupError: The worker does not start with these flags.
    """
    points: list[Point] = []
    for rate in map(float, settings.rates):
        print(f"starting a worker that accepts {rate:g} of the drafts", file=sys.stderr)
        flags = {"worker": _worker_flags(settings, rate), "scheduler": ["--proposers", ""]}
        serve = ServeSettings(model=settings.model)
        specs = stack_specs(serve, flags, without=("proposer", "gateway"))
        with running(specs):
            scheduler, worker = (address_of(specs, name) for name in ("scheduler", "worker"))
            points += asyncio.run(_measure_rate(settings, rate, scheduler, worker))
    return summarise(points, _facts(settings))


def _worker_flags(settings: CrossoverSettings, rate: float) -> list[str]:
    threads = settings.num_threads or len(os.sched_getaffinity(0))
    return [
        *("--drafter", settings.drafter, "--drafter-tree", "none"),
        *("--drafter-tokens", str(settings.drafts)),
        *("--acceptance", "synthetic", "--synthetic-rate", f"{rate:g}"),
        *("--num-threads", str(threads)),
    ]


def _facts(settings: CrossoverSettings) -> dict[str, Any]:
    return {
        "drafter": settings.drafter,
        "max_drafts": settings.drafts,
        "pairs": settings.pairs,
        "slice_ms": settings.slice_ms,
    }


async def _measure_rate(
    settings: CrossoverSettings, rate: float, scheduler: str, worker: str
) -> list[Point]:
    costs = await describe_costs(worker)
    points = []
    async with open_stream(scheduler) as stream:
        load = Load(stream)
        for size in map(int, settings.batch_sizes):
            print(f"acceptance {rate:g}, batch {size}", file=sys.stderr)
            points.append(await _measure_point(settings, load, costs, rate, size))
    return points


async def _measure_point(
    settings: CrossoverSettings, load: Load, costs: StepCosts, rate: float, size: int
) -> Point:
    """Measures with and without in turn, every second pair the other way round.

    So neighbours without are there too, which show the noise.
    """
    seconds = settings.slice_ms / 1000
    for speculates in (True, False):
        # Not measured: until then the scheduler learns what drafts are worth, and passes cost.
        await load.measure(size, seconds, speculates=speculates, least_steps=WARM_UP_STEPS)
    with_speculation: list[float] = []
    without: list[float] = []
    for number in range(settings.pairs):
        for speculates in (True, False) if number % 2 == 0 else (False, True):
            tokens_per_second = await load.measure(size, seconds, speculates=speculates)
            (with_speculation if speculates else without).append(tokens_per_second)
    neighbours = zip(without[::2], without[1::2], strict=False)
    return Point(
        batch_size=size,
        acceptance=rate,
        with_speculation=tuple(with_speculation),
        without=tuple(without),
        without_again=tuple(second / first for first, second in neighbours),
        expected=expect(costs, rate, size, settings.drafts),
    )
