"""Load below capacity for a long time, and whether memory and latency stay what they are."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression, mean, quantiles
from typing import Any, ClassVar

from pydantic import Field

from tests.chaos.command import RunSettings
from tests.chaos.load.case import Case, make_cases
from tests.chaos.load.client import Client, Ending, Outcome
from tests.chaos.load.load import LoadSettings, ask_each, asking, is_all_right, report_outcomes
from tests.chaos.run import DEADLINE_SECONDS, NUM_CASES
from tests.chaos.services.fleet import FULL, Fleet, running_fleet
from tests.chaos.services.levels import Levels, read_levels, settle
from tests.chaos.services.network import Network

# Shares of the mean that figures may grow in a run.
_LATENCY_TOLERANCE = 0.25
_LEVEL_TOLERANCES = {"memory_mib": 0.03, "descriptors": 0.1, "threads": 0.1}
_LATENCIES = ("ttft_ms_p50", "ttft_ms_p99", "itl_ms_p50", "itl_ms_p99")
_SAMPLE_SECONDS = 5.0
# Allocators and caches fill at first.
_WARM_SHARE = 0.2
_RIGHT_ENDINGS = (Ending.ANSWERED, Ending.FAILED)
# Of the measured capacity is asked for; it is measured with so many clients for so long.
_SHARE, _NUM_CLIENTS, _CAPACITY_SECONDS = 0.5, 16, 60.0


class SoakSettings(RunSettings):
    """Half of what the fleet can do, for long: python -m tests.chaos soak [OPTIONS]."""

    section: ClassVar[str] = "soak"

    seconds: float = Field(3600.0, gt=0, description="how long the load goes on")
    window_seconds: float = Field(
        300.0, gt=0, description="figures are reported for each such time"
    )


@dataclass(frozen=True)
class Sample:
    """Levels at a time since the beginning."""

    time: float
    levels: Levels


async def soak(settings: SoakSettings, directory: Path) -> dict[str, Any]:
    """Runs the services and the load; returns the figures, with logs in a directory."""
    async with (
        running_fleet(FULL, Network(), directory) as fleet,
        Client(fleet.grpc_addresses, DEADLINE_SECONDS, seed=settings.seed) as client,
    ):
        return {"seed": settings.seed} | await _soak(settings, fleet, client)


async def _soak(settings: SoakSettings, fleet: Fleet, client: Client) -> dict[str, Any]:
    cases = make_cases(NUM_CASES, settings.seed, is_harsh=True)
    expected = await ask_each(client, cases)
    capacity = await _capacity(settings, client, cases)
    await asyncio.sleep(2.0)
    before = await read_levels(fleet)
    origin = asyncio.get_running_loop().time()
    samples: list[Sample] = []
    sampling = asyncio.create_task(_sample(fleet, origin, samples))
    try:
        rng = random.Random(f"soak {settings.seed}")
        rate = _SHARE * capacity
        outcomes = await _ask_at_rate(client, cases, rate, origin + settings.seconds, rng)
    finally:
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
    levels = await settle(fleet, before)
    counts = report_outcomes(outcomes, expected)
    windows = split_into_windows(settings, origin, outcomes, samples)
    trends = find_trends(windows, samples)
    growing = sorted(name for name, trend in trends.items() if not trend["is_flat"])
    return {
        "seconds": settings.seconds,
        "capacity": round(capacity, 2),
        "asked_per_second": round(len(outcomes) / settings.seconds, 2),
        **counts,
        "windows": windows,
        "trends": trends,
        "growing": growing,
        **levels,
        "all_right": is_all_right(counts) and not growing and not levels["not_back"],
    }


async def _capacity(settings: SoakSettings, client: Client, cases: Sequence[Case]) -> float:
    """Returns requests a second in a closed loop."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    load = LoadSettings(_NUM_CLIENTS, 0.001, leaving_share=0.0, seed=settings.seed)
    async with asking(client, cases, load) as outcomes:
        await asyncio.sleep(_CAPACITY_SECONDS)
    return len(outcomes) / (loop.time() - began)


async def _ask_at_rate(
    client: Client, cases: Sequence[Case], rate: float, end: float, rng: random.Random
) -> list[Outcome]:
    """Begins requests at random times, whatever becomes of the others."""
    loop = asyncio.get_running_loop()
    due, tasks = loop.time(), []
    while (due := due + rng.expovariate(rate)) < end:
        await asyncio.sleep(max(due - loop.time(), 0.0))
        tasks.append(asyncio.create_task(client.ask(rng.choice(cases))))
    return await asyncio.gather(*tasks)


async def _sample(fleet: Fleet, origin: float, samples: list[Sample]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        samples.append(Sample(loop.time() - origin, await read_levels(fleet)))
        await asyncio.sleep(_SAMPLE_SECONDS)


def split_into_windows(
    settings: SoakSettings, origin: float, outcomes: Sequence[Outcome], samples: Sequence[Sample]
) -> list[dict[str, Any]]:
    """Returns the figures of each stretch of time, by when requests began."""
    windows = []
    for number in range(max(1, round(settings.seconds / settings.window_seconds))):
        begin = number * settings.window_seconds
        end = begin + settings.window_seconds
        inside = [one for one in outcomes if begin <= one.began - origin < end]
        levels = [one.levels for one in samples if begin <= one.time < end]
        counts = {
            "requests": len(inside),
            "errors": sum(one.ending not in _RIGHT_ENDINGS for one in inside),
            "refused": sum(one.num_refused for one in inside),
        }
        times = {"begin": begin, "end": end}
        latest = {"levels": levels[-1] if levels else {}}
        windows.append(times | counts | _latencies(inside) | latest)
    return windows


def _latencies(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Returns times to the first token, and between chunks of one answer, in milliseconds."""
    streamed = [one for one in outcomes if one.times]
    first = [one.times[0] - one.began for one in streamed]
    between = [later - earlier for one in streamed for earlier, later in pairwise(one.times)]
    latencies: dict[str, float | None] = {}
    for name, seconds in (("ttft_ms", first), ("itl_ms", between)):
        cuts = quantiles(seconds, n=100) if len(seconds) > 1 else None
        for percent in (50, 99):
            value = round(1000 * cuts[percent - 1], 2) if cuts else None
            latencies[f"{name}_p{percent}"] = value
    return latencies


def find_trends(
    windows: Sequence[dict[str, Any]], samples: Sequence[Sample]
) -> dict[str, dict[str, Any]]:
    """Fits what should stay: latencies over windows, levels over samples; none if too few."""
    trends = {}
    for name in _LATENCIES:
        points = [(one["begin"], one[name]) for one in windows if one[name] is not None]
        if len(points) > 2:
            trends[name] = _fit(points, _LATENCY_TOLERANCE)
    warm = [one for one in samples if one.time >= _WARM_SHARE * samples[-1].time]
    for member, figures in warm[0].levels.items() if len(warm) > 2 else ():
        for name, tolerance in _LEVEL_TOLERANCES.items():
            if name in figures:
                points = [(one.time, one.levels[member][name]) for one in warm]
                trends[f"{member} {name}"] = _fit(points, tolerance)
    return trends


def _fit(samples: Sequence[tuple[float, float]], tolerance: float) -> dict[str, Any]:
    """Fits a line by least squares: its drift is what it gains from the first sample to the last.

    Args:
        samples: Times and values, at least two times.
        tolerance: Share of the mean that the figure may grow; less is flat too.
    """
    times, values = zip(*samples, strict=True)
    slope, _ = linear_regression(times, values)
    drift, average = slope * (times[-1] - times[0]), mean(values)
    rounded = {"mean": float(f"{average:.5g}"), "drift": float(f"{drift:.3g}")}
    return rounded | {"is_flat": drift <= tolerance * average}
