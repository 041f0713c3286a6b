"""Real replicas of the proposer, a real Redis, and a proxy between them."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from optimist_bench.replicas.redis_server import RedisServer
from optimist_bench.replicas.tcp_proxy import TcpProxy
from optimist_cli.serve.ports import free_ports
from optimist_common.errors import SetupError
from optimist_common.network.health import is_serving

_START_SECONDS = 120.0


class Replica:
    """One `optimist proposer` process; a restart keeps the port."""

    def __init__(self, arguments: Sequence[str], port: int) -> None:
        """Starts nothing yet."""
        self.address = f"127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "optimist_proposer", *arguments]
        self._command += ["--port", str(port), "--log-level", "error"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; it is of use once `wait` returns."""
        self._process = subprocess.Popen(self._command)  # noqa: S603

    async def wait(self) -> None:
        """Waits until it serves; raises SetupError if it does not."""
        async with asyncio.timeout(_START_SECONDS):
            while not await asyncio.to_thread(is_serving, self.address, 1.0):
                if self._process is None or self._process.poll() is not None:
                    raise SetupError("a proposer could not start")
                await asyncio.sleep(0.1)

    def kill(self) -> None:
        """Ends it without warning."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Fleet:
    """Replicas that reach their Redis through a proxy."""

    def __init__(self, redis: RedisServer, proxy: TcpProxy, replicas: list[Replica]) -> None:
        self.redis, self.proxy, self.replicas = redis, proxy, replicas

    @property
    def addresses(self) -> list[str]:
        """host:port of each replica."""
        return [replica.address for replica in self.replicas]

    async def wait(self) -> None:
        """Waits until all replicas serve."""
        await asyncio.gather(*(replica.wait() for replica in self.replicas))


@asynccontextmanager
async def running_fleet(
    directory: Path, tokenizer: Path, num_replicas: int, algorithm: str
) -> AsyncIterator[Fleet]:
    """Starts everything, and ends it afterwards.

    Args:
        directory: Where to write, empty.
        tokenizer: A tokenizer.json.
        num_replicas: Number of proposers.
        algorithm: What they follow with.
    """
    model = directory / "model"
    model.mkdir()
    shutil.copyfile(tokenizer, model / "tokenizer.json")
    (model / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8"
    )
    redis = RedisServer(directory)
    redis.start()
    proxy = TcpProxy(redis.port)
    await proxy.start()
    url = f"redis://127.0.0.1:{proxy.port}/0"
    arguments = ["--model", str(model), "--store", url, "--algorithm", algorithm]
    replicas = [Replica(arguments, port) for port in free_ports(num_replicas)]
    try:
        for replica in replicas:
            replica.start()
        fleet = Fleet(redis, proxy, replicas)
        await fleet.wait()
        yield fleet
    finally:
        for replica in replicas:
            replica.kill()
        await proxy.stop()
        redis.thaw()
        redis.kill()


_CALM_SECONDS = 2.0
_AWAY_SECONDS = 8.0

Disturbance = Callable[[Fleet], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to use replicas, and what happens to them meanwhile."""

    num_replicas: int
    stays: bool
    """Whether each request stays at one replica."""
    disturb: Disturbance | None = None


async def _kill_in_turn(fleet: Fleet) -> None:
    for replica in fleet.replicas:
        await asyncio.sleep(_CALM_SECONDS)
        await asyncio.to_thread(replica.kill)
        replica.start()
        await replica.wait()
    await asyncio.sleep(_CALM_SECONDS)


async def _empty_redis(fleet: Fleet) -> None:
    for _ in range(3):
        await asyncio.sleep(_CALM_SECONDS)
        await asyncio.to_thread(fleet.redis.kill)
        await asyncio.to_thread(fleet.redis.start)
    await asyncio.sleep(_CALM_SECONDS)


async def _stop_redis(fleet: Fleet) -> None:
    await asyncio.sleep(_CALM_SECONDS)
    fleet.redis.freeze()
    await asyncio.sleep(_AWAY_SECONDS)
    fleet.redis.thaw()
    await asyncio.sleep(_CALM_SECONDS)


async def _cut_off_redis(fleet: Fleet) -> None:
    await asyncio.sleep(_CALM_SECONDS)
    fleet.proxy.cut()
    await asyncio.sleep(_AWAY_SECONDS)
    fleet.proxy.mend()
    await asyncio.sleep(_CALM_SECONDS)


MODES: dict[str, Mode] = {
    "one": Mode(1, True),
    "affinity": Mode(3, True),
    "round_robin": Mode(3, False),
    "killed": Mode(3, False, _kill_in_turn),
    "killed_affinity": Mode(3, True, _kill_in_turn),
    "redis_emptied": Mode(3, False, _empty_redis),
    "redis_emptied_affinity": Mode(3, True, _empty_redis),
    "redis_stopped": Mode(3, False, _stop_redis),
    "redis_stopped_affinity": Mode(3, True, _stop_redis),
    "partition": Mode(3, False, _cut_off_redis),
    "partition_affinity": Mode(3, True, _cut_off_redis),
}
"""`one` is what the others are compared to; without `affinity` in its name, a mode sends each
step's observations to the replicas in turn."""
