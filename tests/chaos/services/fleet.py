"""All services as real processes: gateways, schedulers with their workers, proposers, a Redis."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.chaos.services.member import Member, answers_ping, serves_grpc, serves_http
from tests.chaos.services.network import Network
from tests.stack import BUNDLED_MODEL


@dataclass(frozen=True)
class Shape:
    """How many of each."""

    num_gateways: int = 2
    num_workers: tuple[int, ...] = (2, 1)
    """Of each scheduler."""
    num_proposers: int = 2
    dtype: str = "float64"
    """Of the workers; in float64 no token depends on how wide a pass is."""
    gateway_options: tuple[str, ...] = ()
    """More of each gateway's command line."""


class Fleet:
    """The processes by name, in the order in which they were started."""

    def __init__(self, members: dict[str, Member]) -> None:
        self.members = members

    def named(self, role: str) -> list[Member]:
        """Returns the members of a role, such as `worker`."""
        return [one for name, one in self.members.items() if name.rstrip("0123456789-") == role]

    async def until_healthy(self) -> None:
        """Waits until all can work."""
        await asyncio.gather(*(one.until_healthy() for one in self.members.values()))


@asynccontextmanager
async def running_fleet(shape: Shape, network: Network, directory: Path) -> AsyncIterator[Fleet]:
    """Starts everything and waits until it is healthy; ends it afterwards.

    Args:
        shape: How many of each.
        network: Where they run and how they reach each other; closed in the end.
        directory: Where logs go, and what Redis writes.

    Raises:
        RuntimeError: A service did not start, or did not end cleanly.
    """
    fleet = Fleet({})
    try:
        await _build(shape, network, _Builder(fleet, network, directory))
        for member in fleet.members.values():
            member.start()
        await fleet.until_healthy()
        yield fleet
        # Those who call others go first.
        for role in ("gateway", "scheduler", "worker", "proposer", "redis"):
            await asyncio.gather(*(member.end() for member in fleet.named(role)))
    finally:
        for member in fleet.members.values():
            member.kill()
        await network.close()


class _Builder:
    """Adds members to a fleet."""

    def __init__(self, fleet: Fleet, network: Network, directory: Path) -> None:
        self._fleet, self._network, self._directory = fleet, network, directory

    def add(self, name: str, *options: str) -> None:
        """Adds a service."""
        role = name.rpartition("-")[0]
        host, port = address = self._network.place(name)
        command = [sys.executable, "-m", f"optimist_{role}", "--host", host, "--port", str(port)]
        command += ["--insecure", "true", "--log-level", "info", *options]
        metrics_port = port
        healthy = serves_http(address)
        if role != "gateway":
            healthy, (_, metrics_port) = serves_grpc(address), self._network.place(name)
            command += ["--metrics-port", str(metrics_port)]
        self._put(name, address, command, healthy, f"http://{host}:{metrics_port}/metrics")

    def add_redis(self) -> None:
        """Adds a Redis without persistence."""
        host, port = address = self._network.place("redis")
        command = ["redis-server", "--bind", host, "--port", str(port), "--protected-mode", "no"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._directory)]
        self._put("redis", address, command, answers_ping(address), "")

    async def connect(self, client: str, servers: list[str]) -> str:
        """Returns where a client is to reach servers, as the flags have it."""
        members = self._fleet.members
        return ",".join(
            [await self._network.connect(client, one, members[one].address) for one in servers]
        )

    def _put(
        self,
        name: str,
        address: tuple[str, int],
        command: list[str],
        healthy: Callable[[], bool],
        metrics_url: str,
    ) -> None:
        command = self._network.command(name, command)
        log = self._directory / f"{name}.log"
        self._fleet.members[name] = Member(name, address, command, healthy, log, metrics_url)


async def _build(shape: Shape, network: Network, builder: _Builder) -> None:
    model = ("--model", str(BUNDLED_MODEL))
    builder.add_redis()
    proposers = [f"proposer-{number + 1}" for number in range(shape.num_proposers)]
    for name in proposers:
        store = await builder.connect(name, ["redis"])
        builder.add(name, *model, "--store", f"redis://{store}/0")
    numbers, schedulers = count(1), []
    for index, num_workers in enumerate(shape.num_workers):
        workers = [f"worker-{next(numbers)}" for _ in range(num_workers)]
        for name in workers:
            builder.add(name, *model, "--dtype", shape.dtype, "--num-threads", "1")
        schedulers.append(f"scheduler-{index + 1}")
        builder.add(
            schedulers[-1],
            *("--workers", await builder.connect(schedulers[-1], workers)),
            *("--proposers", await builder.connect(schedulers[-1], proposers)),
        )
    for number in range(shape.num_gateways):
        name = f"gateway-{number + 1}"
        reached = await builder.connect(name, schedulers)
        builder.add(name, *model, "--schedulers", reached, *shape.gateway_options)
