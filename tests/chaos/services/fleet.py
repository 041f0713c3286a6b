"""All services as real processes: gateways, schedulers with their workers, proposers, a Redis."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.chaos.services.network import Network
from tests.stack import MODEL_FLAG, Process, health_of

# What is computed is the same, whatever it costs; and a core is shared by several.
_ENVIRONMENT = {"OPTIMIST_WORKER_COST_SECONDS": "0", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Shape:
    """How many of each."""

    num_gateways: int = 2
    num_workers: tuple[int, ...] = (2, 1)
    """Of each scheduler."""
    num_proposers: int = 2
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """More of the command lines of a role, such as `gateway`."""


FULL = Shape()


class Member(Process):
    """One process, which is waited for while proxies and clients go on."""

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        command: Sequence[str],
        is_healthy: Callable[[], bool],
        log: Path,
        metrics_url: str = "",
    ) -> None:
        """Starts nothing yet; see `Process`.

        Args:
            name: Such as `worker-1`.
            address: Host and port that it listens on.
            command: Its command line.
            is_healthy: Asks it; blocks.
            log: Where its output goes, after that of earlier starts.
            metrics_url: Where its metrics are; empty without.
        """
        super().__init__(name, command, is_healthy, _ENVIRONMENT, log)
        self.address, self.metrics_url = address, metrics_url

    async def until_healthy(self) -> None:
        """See `wait_until_healthy`."""
        await asyncio.to_thread(self.wait_until_healthy)

    async def end(self) -> None:
        """See `stop`."""
        await asyncio.to_thread(self.stop)


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
        await _build(shape, _Builder(shape, fleet, network, directory))
        for member in fleet.members.values():
            # The first one may wait for the fork server, while proxies go on.
            await asyncio.to_thread(member.start)
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

    def __init__(self, shape: Shape, fleet: Fleet, network: Network, directory: Path) -> None:
        self._shape, self._fleet = shape, fleet
        self._network, self._directory = network, directory

    def add(self, name: str, *options: str) -> None:
        """Adds a service."""
        role = name.rpartition("-")[0]
        host, port = address = self._network.place(name)
        command = [sys.executable, "-m", f"optimist_{role}", "--host", host, "--port", str(port)]
        command += ["--insecure", "true", "--log-level", "info", *options]
        command += self._shape.options.get(role, ())
        metrics_port = port
        if role != "gateway":
            _, metrics_port = self._network.place(name)
            command += ["--metrics-port", str(metrics_port)]
        healthy = health_of(role, f"{host}:{port}")
        self._put(name, address, command, healthy, f"http://{host}:{metrics_port}/metrics")

    def add_redis(self) -> None:
        """Adds a Redis without persistence."""
        host, port = address = self._network.place("redis")
        command = ["redis-server", "--bind", host, "--port", str(port), "--protected-mode", "no"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._directory)]
        self._put("redis", address, command, lambda: _answers_ping(address), "")

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


def _answers_ping(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(7) == b"+PONG\r\n"
    except OSError:
        return False


async def _build(shape: Shape, builder: _Builder) -> None:
    builder.add_redis()
    proposers = [f"proposer-{number + 1}" for number in range(shape.num_proposers)]
    for name in proposers:
        store = await builder.connect(name, ["redis"])
        builder.add(name, *MODEL_FLAG, "--store", f"redis://{store}/0")
    numbers, schedulers = count(1), []
    for index, num_workers in enumerate(shape.num_workers):
        workers = [f"worker-{next(numbers)}" for _ in range(num_workers)]
        for name in workers:
            # In float64 no token depends on how wide a pass is.
            builder.add(name, *MODEL_FLAG, "--dtype", "float64", "--num-threads", "1")
        schedulers.append(f"scheduler-{index + 1}")
        builder.add(
            schedulers[-1],
            *("--workers", await builder.connect(schedulers[-1], workers)),
            *("--proposers", await builder.connect(schedulers[-1], proposers)),
        )
    for number in range(shape.num_gateways):
        name = f"gateway-{number + 1}"
        reached = await builder.connect(name, schedulers)
        builder.add(name, *MODEL_FLAG, "--schedulers", reached)
