"""Asks random requests twice, without drafts and with, until the time is over."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from tests.chaos.command import RunSettings
from tests.chaos.load.answer import Promise, difference, is_beginning
from tests.chaos.load.client import Client, Ending, Outcome
from tests.chaos.services.fleet import Fleet, Shape, running_fleet
from tests.chaos.services.network import Network
from tests.fuzz.check import fault_of
from tests.fuzz.draw import draw, load_material, predict
from tests.fuzz.server import (
    AT_ONCE,
    REQUESTS_PER_SERVER,
    draw_server,
    leftovers,
    reference_shape,
)
from tests.fuzz.tally import Asked, Tally
from tests.stack import BUNDLED_MODEL

_DEADLINE_SECONDS = 600.0
# By how much logarithms may differ: where there are no kernels, passes of other sizes round
# otherwise in float32.
_PROMISES = {
    "float64": Promise(tolerance=1e-7),
    "float32": Promise(tolerance=1e-3),
    "bfloat16": Promise(tolerance=1e-3),
}
Burst = list[Asked]


class FuzzSettings(RunSettings):
    """Random requests, with drafts and without: python -m tests.fuzz [OPTIONS]."""

    section: ClassVar[str] = "fuzz"

    seconds: float = Field(1800.0, gt=0, description="how long requests begin")
    requests: int = Field(0, ge=0, description="how many there are at most; 0: no limit")
    first: int = Field(0, ge=0, description="number of the first request, to repeat one or some")
    model: str = Field(str(BUNDLED_MODEL), description="directory of the model")
    dtype: Literal["float32", "float64", "bfloat16"] = Field(
        "float32", description="float32, float64 or bfloat16"
    )


async def fuzz(settings: FuzzSettings, directory: Path) -> dict[str, Any]:
    """Runs servers and requests; returns the counts, with logs in a directory."""
    run = _Run(settings, directory)
    began = time.monotonic()
    shape = reference_shape(settings.model, settings.dtype)
    async with (
        run.serving(shape, "undrafted") as fleet,
        Client(fleet.grpc_addresses, _DEADLINE_SECONDS) as client,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(run.prepare(client))
        await run.ask_all()
    report = {"seed": settings.seed, "model": Path(settings.model).name, "dtype": settings.dtype}
    return report | {"seconds": round(time.monotonic() - began)} | run.tally.report()


class _Run:
    def __init__(self, settings: FuzzSettings, directory: Path) -> None:
        self.tally = Tally()
        self._settings, self._directory = settings, directory
        self._material = load_material(Path(settings.model), settings.seed)
        self._tolerance = _PROMISES[settings.dtype].tolerance
        self._bursts: asyncio.Queue[Burst | None] = asyncio.Queue(2)

    @asynccontextmanager
    async def serving(self, shape: Shape, name: str) -> AsyncIterator[Fleet]:
        """Runs services; notes what is wrong with them in the end."""
        directory = self._directory / name
        directory.mkdir()
        try:
            async with running_fleet(shape, Network(), directory) as fleet:
                yield fleet
                for fault in await leftovers(fleet):
                    self.tally.fault(f"server {name}: {fault}")
                if shape.num_proposers:
                    self.tally.count_figures(fleet.named("scheduler")[0], fleet.named("worker")[0])
        except RuntimeError as error:
            self.tally.fault(f"server {name}: {error}")

    async def prepare(self, client: Client) -> None:
        """Draws bursts of requests, and asks each one alone without drafts."""
        settings = self._settings
        end = settings.first + settings.requests if settings.requests else 2**31
        deadline = time.monotonic() + settings.seconds
        number = settings.first
        while number < end and time.monotonic() < deadline:
            later = min(end, (number // AT_ONCE + 1) * AT_ONCE)
            await self._bursts.put(
                [await self._prepare(client, one) for one in range(number, later)]
            )
            number = later
        await self._bursts.put(None)

    async def _prepare(self, client: Client, number: int) -> Asked:
        drawn = draw(self._settings.seed, number, self._material)
        outcome = await client.ask(drawn.case.undrafted)
        expected = outcome.answer
        asked = Asked(drawn, predict(drawn, expected, self._settings.seed), expected)
        has_ended = outcome.ending is Ending.ANSWERED or expected.failure is not None
        fault = fault_of(drawn, expected, self._material) if has_ended else outcome.message
        if fault or not has_ended:
            self.tally.differs(asked, outcome, f"without drafts: {fault}", "undrafted", "")
        return asked

    async def ask_all(self) -> None:
        """Asks all bursts of servers that are started one after the other."""
        burst = await self._bursts.get()
        while burst is not None:
            first = burst[0].drawn.number
            number = first // REQUESTS_PER_SERVER
            material = self._material
            server = draw_server(
                self._settings.seed,
                first,
                has_heads=material.has_heads,
                is_recurrent=material.is_recurrent,
            )
            shape = server.shape(self._settings.model, self._settings.dtype)
            async with (
                self.serving(shape, f"{number}") as fleet,
                Client(fleet.grpc_addresses, _DEADLINE_SECONDS) as client,
            ):
                self.tally.counts["servers"] += 1
                while burst and burst[0].drawn.number // REQUESTS_PER_SERVER == number:
                    await asyncio.gather(*(self._ask(client, one, str(server)) for one in burst))
                    burst = await self._bursts.get()

    async def _ask(self, client: Client, one: Asked, server: str) -> None:
        outcome = await client.ask(one.case, one.drawn.leave_seconds)
        self.tally.count(one, outcome)
        if what := self._fault(one, outcome):
            again = self._fault(one, await client.ask(one.case))
            self.tally.differs(one, outcome, what, server, again or "right")

    def _fault(self, one: Asked, outcome: Outcome) -> str:
        """Says what is wrong with an answer; empty if nothing."""
        if outcome.ending is Ending.LEFT:
            is_right = is_beginning(outcome.answer, one.expected)
            return "" if is_right else "left, and not the beginning of the answer"
        if outcome.ending is Ending.LATE:
            return f"no answer within {_DEADLINE_SECONDS:g} s"
        if outcome.ending is Ending.LOST and outcome.answer.failure is None:
            return f"lost: {outcome.message}"
        # What is wrong with an answer by itself was noted when it came without drafts.
        return difference(outcome.answer, one.expected, self._tolerance)
