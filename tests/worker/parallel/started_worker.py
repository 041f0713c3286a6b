"""A worker as a user starts it, of one rank or several, for tests."""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from optimist.worker.v1 import worker_pb2_grpc
from optimist_common.network.channel import open_channel
from optimist_common.network.health import is_serving
from tests.stack import free_port

START_SECONDS = 200.0
WORKER = (sys.executable, "-m", "optimist_worker")
SMALL = (
    *("--num-threads", "1", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"),
    *("--num-kv-blocks", "96", "--max-model-len", "400", "--cost-seconds", "0.2"),
)


class StartedWorker:
    """Serves when constructed."""

    def __init__(
        self, model: Path, *options: str, command: Sequence[str] = WORKER, **variables: str
    ) -> None:
        self.port, self._log = free_port(), os.memfd_create("log")
        self.address = f"127.0.0.1:{self.port}"
        words = [*command, "--model", str(model), "--port", str(self.port), *SMALL, *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        self.process = subprocess.Popen(words, stderr=self._log, env=environment)
        deadline = time.monotonic() + START_SECONDS
        while not is_serving(self.address, 1.0):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise AssertionError(self.log)

    @property
    def log(self) -> str:
        # What is written next goes where it would have gone.
        return os.pread(self._log, 2**20, 0).decode()

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[Any]:
        async with open_channel(self.address) as channel:
            yield worker_pb2_grpc.WorkerServiceStub(channel)

    def ranks(self) -> list[int]:
        """Returns the process ids of the ranks, by rank."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"--port\0{self.port}\0" in (path / "cmdline").read_bytes().decode():
                    for variable in (path / "environ").read_bytes().decode().split("\0"):
                        if variable.startswith("RANK="):
                            found[int(variable.removeprefix("RANK="))] = int(path.name)
        return [found[rank] for rank in sorted(found)]

    def wait(self) -> int:
        """Waits for the end; returns the exit code."""
        return self.process.wait(60)

    def end(self) -> None:
        """Ends it in good order, or else by force."""
        self.process.terminate()
        try:
            self.wait()
        finally:
            self.process.kill()
