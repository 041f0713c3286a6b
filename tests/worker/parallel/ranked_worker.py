"""A worker of several ranks as a user starts it, for tests."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from optimist.worker.v1 import worker_pb2_grpc
from optimist_common.network.channel import open_channel
from tests.stack import free_port

START_SECONDS = 200.0
WORKER = (sys.executable, "-m", "optimist_worker")
SMALL = (
    *("--num-threads", "1", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"),
    *("--num-kv-blocks", "96", "--max-model-len", "400", "--cost-seconds", "0.2"),
)


class RankedWorker:
    """Serves when constructed."""

    def __init__(
        self, model: Path, *options: str, command: Sequence[str] = WORKER, **variables: str
    ) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.log = ""
        words = [*command, "--model", str(model), "--port", str(self.port), *SMALL, *options]
        self.process = subprocess.Popen(
            words, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1", **variables}
        )
        try:
            self._wait_for(f"serving on {self.address}")
        except BaseException:
            self.end()
            raise

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[Any]:
        async with open_channel(self.address) as channel:
            yield worker_pb2_grpc.WorkerServiceStub(channel)

    def ranks(self) -> list[int]:
        """Returns the process ids of the ranks, by rank."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (path / "cmdline").read_bytes().decode()
                variables = (path / "environ").read_bytes().decode().split("\0")
            except OSError:
                continue
            if f"--port\0{self.port}\0" in arguments:
                for variable in variables:
                    if variable.startswith("RANK="):
                        found[int(variable.removeprefix("RANK="))] = int(path.name)
        return [found[rank] for rank in sorted(found)]

    def wait(self) -> int:
        """Waits for the end; returns the exit code."""
        _, log = self.process.communicate(timeout=60)
        self.log += log.decode()
        return self.process.returncode

    def end(self) -> None:
        """Ends it in good order, or else by force."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.wait()
            raise

    def _wait_for(self, text: str) -> None:
        stream = self.process.stderr
        assert stream is not None
        deadline = time.monotonic() + START_SECONDS
        while text not in self.log:
            ready, _, _ = select.select([stream], [], [], 1.0)
            data = os.read(stream.fileno(), 65536) if ready else b""
            self.log += data.decode()
            assert data or not ready, self.log
            assert time.monotonic() < deadline, self.log
