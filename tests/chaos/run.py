"""Mixed load while a schedule of faults runs, and whether everything is as if there were none."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from tests.chaos.command import RunSettings
from tests.chaos.faults.injector import Injector
from tests.chaos.faults.recovery import report_recovery
from tests.chaos.faults.schedule import make_schedule
from tests.chaos.load.answer import SAME_ENGINE, SEVERAL_ENGINES, difference
from tests.chaos.load.case import Case, make_cases
from tests.chaos.load.client import Client
from tests.chaos.load.load import (
    Answers,
    LoadSettings,
    ask_each,
    asking,
    is_all_right,
    report_outcomes,
)
from tests.chaos.services.fleet import FULL, Fleet, Shape, running_fleet
from tests.chaos.services.levels import read_levels, settle
from tests.chaos.services.network import ProxiedNetwork
from tests.stack import MODEL_FLAG, start

NUM_CASES = 48
"""Different requests of a run."""
DEADLINE_SECONDS = 120.0
"""Of each request."""


class FaultsSettings(RunSettings):
    """Mixed load while faults are injected: python -m tests.chaos faults [OPTIONS]."""

    section: ClassVar[str] = "chaos"

    seconds: float = Field(600.0, gt=0, description="how long faults begin")
    pause_seconds: float = Field(6.0, gt=0, description="mean time between two faults")
    warm_seconds: float = Field(20.0, gt=0, description="of the same load without faults before")
    cases: int = Field(NUM_CASES, ge=1, description="number of different requests")
    predictions: bool = Field(
        False, description="whether every request has a prediction: true or false"
    )
    clients: int = Field(6, ge=1, le=256, description="requests at once")
    engines: int = Field(
        0, ge=0, le=8, description="engines of vLLM, beside one scheduler with a worker"
    )
    engine_python: str = Field(
        ".venv-vllm/bin/python", description="Python of the environment that has vLLM"
    )

    @property
    def shape(self) -> Shape:
        """What runs."""
        if not self.engines:
            return FULL
        return Shape(
            num_workers=(1,),
            num_proposers=1,
            num_engines=self.engines,
            engine_python=self.engine_python,
            dtype="float32",
        )


async def run(
    settings: FaultsSettings, directory: Path, shape: Shape | None = None
) -> dict[str, Any]:
    """Runs the services, the load and the faults; returns the figures, with logs in a directory."""
    # Made before there are proxies, which stand still meanwhile.
    cases = make_cases(
        settings.cases,
        settings.seed,
        predicts_all=settings.predictions,
        # How much of a grammar vLLM follows is its own affair.
        is_harsh=not settings.engines,
    )
    network = ProxiedNetwork(settings.seed)
    began = time.monotonic()
    async with running_fleet(shape or settings.shape, network, directory) as fleet:
        start_seconds = round(time.monotonic() - began, 1)
        injector = Injector(fleet, network)
        gateways = {f"http://{one.address}": one.name for one in fleet.named("gateway")}

        def may_break(url: str, since: float) -> bool:
            return injector.was_harmed(gateways[url], since)

        async with Client(
            fleet.grpc_addresses, DEADLINE_SECONDS, may_break, settings.seed
        ) as client:
            if settings.engines:
                cases = await _keep_equal(cases, fleet)
            report = await _run_load(settings, cases, injector, client)
    return {"seed": settings.seed, "start_seconds": start_seconds} | report


async def _keep_equal(cases: Sequence[Case], fleet: Fleet) -> list[Case]:
    """Leaves out cases in which vLLM and our own workers go separate ways at near ties.

    In float32 they compute otherwise, and their grammars differ in white space; either is right.
    """
    answers: list[Answers] = []
    for role in ("scheduler", "engine"):
        address = fleet.named(role)[0].address
        with ExitStack() as stack:
            options = (*MODEL_FLAG, "--schedulers", address)
            gateway = await asyncio.to_thread(start, stack, "gateway", *options)
            async with Client([f"http://{gateway.address}"], DEADLINE_SECONDS) as client:
                answers.append(await ask_each(client, cases))
    ours, theirs = answers
    return [
        case
        for case in cases
        if case.is_sampled
        or not difference(theirs[case.name], ours[case.name], SEVERAL_ENGINES.tolerance)
    ]


async def _run_load(
    settings: FaultsSettings, cases: Sequence[Case], injector: Injector, client: Client
) -> dict[str, Any]:
    expected = await ask_each(client, cases)
    promise = SEVERAL_ENGINES if settings.engines else SAME_ENGINE
    load = LoadSettings(num_clients=settings.clients, seed=settings.seed)
    async with asking(client, cases, replace(load, seed=settings.seed + 1)) as outcomes:
        await asyncio.sleep(settings.warm_seconds)
    undisturbed = report_outcomes(outcomes, expected, promise)
    # What was left over by clients that went away is gone after a moment.
    await asyncio.sleep(2.0)
    fleet, before = injector.fleet, await read_levels(injector.fleet)
    places = (list(injector.network.edges), list(fleet.members))
    schedule = make_schedule(settings.seed, settings.seconds, *places, settings.pause_seconds)
    loop = asyncio.get_running_loop()
    origin = loop.time()
    async with asking(client, cases, load) as outcomes:
        await injector.run(schedule)
    levels = await settle(fleet, before)
    counts = report_outcomes(outcomes, expected, promise)
    is_right = is_all_right(counts) and is_all_right(undisturbed)
    faults = injector.injected
    return {
        "cases": len(cases),
        "seconds": round(loop.time() - origin, 1),
        "faults": len(faults),
        "faults_by_kind": dict(sorted(Counter(str(one.fault.kind) for one in faults).items())),
        "faults_by_place": dict(sorted(Counter(one.fault.place for one in faults).items())),
        "undisturbed": undisturbed,
        **counts,
        "recovery": report_recovery(faults, outcomes),
        **levels,
        "schedule": [one.summary(origin) for one in faults],
        "all_right": is_right and not levels["not_back"],
    }
