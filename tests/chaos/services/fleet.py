"""All services as real processes: gateways, schedulers with workers, engines, proposers, Redis."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.chaos.services.network import Network
from tests.stack import BUNDLED_MODEL, EXACT_DTYPE, VLLM_FLAGS, VLLM_VARIABLES, Process

# What is computed is the same, whatever it costs; and a core is shared by several.
_ENVIRONMENT = {"OPTIMIST_WORKER_COST_SECONDS": "0", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Shape:
    """How many of each."""

    num_gateways: int = 2
    num_workers: tuple[int, ...] = (2, 1)
    """Of each scheduler."""
    num_proposers: int = 2
    num_engines: int = 0
    """Of vLLM, beside the schedulers."""
    engine_python: str = ""
    """Of the environment that has vLLM."""
    dtype: str = EXACT_DTYPE
    """Of the workers."""
    model: str = str(BUNDLED_MODEL)
    """Directory of the model."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """More of the command lines of a role, such as `gateway`."""


FULL = Shape()


class Fleet:
    """The processes by name, in the order in which they were started."""

    def __init__(self, shape: Shape, network: Network, directory: Path) -> None:
        """Starts nothing yet; see `running_fleet`."""
        self.members: dict[str, Process] = {}
        self.grpc_addresses: dict[str, str] = {}
        """Where gateways speak gRPC, by their URLs."""
        self._shape, self._network, self._directory = shape, network, directory

    def named(self, role: str) -> list[Process]:
        """Returns the members of a role, such as `worker`."""
        return [one for one in self.members.values() if one.role == role]

    async def until_healthy(self) -> None:
        """Waits until all can work."""
        waits = (asyncio.to_thread(one.wait_until_healthy) for one in self.members.values())
        await asyncio.gather(*waits)

    async def build(self) -> None:
        """Adds all members of the shape, which it does not start."""
        shape, model = self._shape, ("--model", self._shape.model)
        if shape.num_proposers:
            self._add_redis()
        proposers = [f"proposer-{number + 1}" for number in range(shape.num_proposers)]
        for name in proposers:
            store = await self._connect(name, ["redis"])
            self._add(name, *model, "--store", f"redis://{store}/0")
        numbers, schedulers = count(1), []
        for index, num_workers in enumerate(shape.num_workers):
            workers = [f"worker-{next(numbers)}" for _ in range(num_workers)]
            for name in workers:
                self._add(name, *model, "--dtype", shape.dtype, "--num-threads", "1")
            name = f"scheduler-{index + 1}"
            peers = ("--workers", await self._connect(name, workers))
            self._add(name, *peers, "--proposers", await self._connect(name, proposers))
            schedulers.append(name)
        for number in range(shape.num_engines):
            schedulers.append(f"engine-{number + 1}")
            self._add(schedulers[-1], *model)
        for number in range(shape.num_gateways):
            name = f"gateway-{number + 1}"
            reached = await self._connect(name, schedulers)
            host, port = self._network.place(name)
            self._add(name, *model, "--schedulers", reached, "--grpc-port", str(port))
            self.grpc_addresses[f"http://{self.members[name].address}"] = f"{host}:{port}"

    def _add(self, name: str, *options: str) -> None:
        role = name.rpartition("-")[0]
        host, port = self._network.place(name)
        start = [sys.executable, "-m", f"optimist_{role}"]
        if role == "engine":
            start = [self._shape.engine_python, "-m", "optimist_vllm.engine"]
        command = [*start, "--host", host, "--port", str(port)]
        command += ["--insecure", "--log-level", "info", *options]
        command += self._shape.options.get(role, ())
        metrics_port = port
        if role != "gateway":
            _, metrics_port = self._network.place(name)
            command += ["--metrics-port", str(metrics_port)]
        if role == "engine":
            command += VLLM_FLAGS
        self._put(name, command, f"{host}:{port}", f"http://{host}:{metrics_port}/metrics")

    def _add_redis(self) -> None:
        """Adds a Redis without persistence."""
        host, port = self._network.place("redis")
        command = ["redis-server", "--bind", host, "--port", str(port), "--protected-mode", "no"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._directory)]
        self._put("redis", command, f"{host}:{port}", "")

    async def _connect(self, client: str, servers: list[str]) -> str:
        """Returns where a client is to reach servers, as the flags have it."""
        addresses = {one: self.members[one].address for one in servers}
        return ",".join([await self._network.connect(client, *one) for one in addresses.items()])

    def _put(self, name: str, command: list[str], address: str, metrics_url: str) -> None:
        command, log = self._network.command(name, command), self._directory / f"{name}.log"
        environment = _ENVIRONMENT | (VLLM_VARIABLES if name.startswith("engine") else {})
        self.members[name] = Process(name, command, address, environment, log, metrics_url)


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
    fleet = Fleet(shape, network, directory)
    try:
        await fleet.build()
        for member in fleet.members.values():
            # The first one may wait for the fork server, while proxies go on.
            await asyncio.to_thread(member.start)
        await fleet.until_healthy()
        yield fleet
        # Those who call others go first.
        for role in ("gateway", "scheduler", "engine", "worker", "proposer", "redis"):
            await asyncio.gather(*(asyncio.to_thread(one.stop) for one in fleet.named(role)))
    finally:
        for member in fleet.members.values():
            member.kill()
        await network.close()
