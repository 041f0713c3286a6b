"""Real replicas of the proposer, a real Redis, and a proxy between them."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
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
