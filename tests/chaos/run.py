"""Mixed load while a schedule of faults runs, and whether everything is as if there were none."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.chaos.faults.injector import Injector
from tests.chaos.faults.recovery import report_recovery
from tests.chaos.faults.schedule import make_schedule
from tests.chaos.load.answer import Answer
from tests.chaos.load.case import Case, make_cases
from tests.chaos.load.client import Client
from tests.chaos.load.load import LoadSettings, ask_each, is_all_right, keep_asking, report_outcomes
from tests.chaos.services.fleet import Fleet, Shape, running_fleet
from tests.chaos.services.levels import excesses, read_levels, settle, side_by_side
from tests.chaos.services.network import ProxiedLoopback


@dataclass(frozen=True)
class RunSettings:
    """One run of the fault suite."""

    seconds: float
    """How long faults begin."""
    seed: int
    shape: Shape = field(default_factory=Shape)
    num_cases: int = 48
    warm_seconds: float = 20.0
    """Of the same load without faults before."""
    mean_pause_seconds: float = 6.0
    """Between two faults."""
    deadline_seconds: float = 120.0
    """Of each request."""
    load: LoadSettings = field(default_factory=LoadSettings)


async def run(settings: RunSettings, directory: Path) -> dict[str, Any]:
    """Runs the services, the load and the faults; returns the figures.

    Args:
        settings: What to run.
        directory: Where logs go.
    """
    # Made before there are proxies, which stand still meanwhile.
    cases = make_cases(settings.num_cases, settings.seed)
    network = ProxiedLoopback(settings.seed)
    began = time.monotonic()
    async with running_fleet(settings.shape, network, directory) as fleet:
        start_seconds = time.monotonic() - began
        injector = Injector(fleet, network)
        gateways = {"http://{}:{}".format(*one.address): one.name for one in fleet.named("gateway")}
        client = Client(
            list(gateways),
            settings.deadline_seconds,
            lambda url, since: injector.was_harmed(gateways[url], since),
            settings.seed,
        )
        try:
            report = await _run_load(settings, cases, fleet, network, injector, client)
        finally:
            await client.close()
    return {"seed": settings.seed, "start_seconds": round(start_seconds, 1)} | report


async def _run_load(
    settings: RunSettings,
    cases: Sequence[Case],
    fleet: Fleet,
    network: ProxiedLoopback,
    injector: Injector,
    client: Client,
) -> dict[str, Any]:
    expected = await ask_each(client, cases)
    undisturbed = await _load_for(settings, client, cases, settings.warm_seconds, expected)
    # What was left over by clients that went away is gone after a moment.
    await asyncio.sleep(2.0)
    before = await read_levels(fleet)
    schedule = make_schedule(
        settings.seed,
        settings.seconds,
        list(network.edges),
        list(fleet.members),
        settings.mean_pause_seconds,
    )
    origin, over = asyncio.get_running_loop().time(), asyncio.Event()
    load = asyncio.create_task(keep_asking(client, cases, settings.load, over))
    try:
        await injector.run(schedule)
    finally:
        over.set()
        outcomes = await load
    after = await settle(fleet, before)
    counts = report_outcomes(outcomes, expected)
    too_much = excesses(before, after)
    faults = injector.injected
    return {
        "seconds": round(asyncio.get_running_loop().time() - origin, 1),
        "faults": len(faults),
        "faults_by_kind": dict(sorted(Counter(str(one.fault.kind) for one in faults).items())),
        "faults_by_place": dict(sorted(Counter(one.fault.place for one in faults).items())),
        "undisturbed": undisturbed,
        **counts,
        "recovery": report_recovery(faults, outcomes),
        "levels": side_by_side(before, after),
        "not_back": too_much,
        "schedule": [one.summary(origin) for one in faults],
        "all_right": is_all_right(counts) and is_all_right(undisturbed) and not too_much,
    }


async def _load_for(
    settings: RunSettings,
    client: Client,
    cases: Sequence[Case],
    seconds: float,
    expected: dict[str, Answer],
) -> dict[str, Any]:
    """Runs the load without faults, for so long."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    load = replace(settings.load, seed=settings.load.seed + 1)
    return report_outcomes(await keep_asking(client, cases, load, over), expected)
