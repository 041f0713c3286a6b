"""One process of the fleet, which can be killed, stopped, ended and started again."""

import asyncio
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from optimist_common.network.health import is_serving

START_SECONDS = 240.0
END_SECONDS = 30.0
_POLL_SECONDS = 0.1
_PROBE_SECONDS = 1.0
# What is computed is the same, whatever it costs; and a core is shared by several.
_ENVIRONMENT = {"OPTIMIST_WORKER_COST_SECONDS": "0", "OMP_NUM_THREADS": "1"}


class Member:
    """A process with its health; it keeps its command and address when it is started again."""

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        command: Sequence[str],
        is_healthy: Callable[[], bool],
        log: Path,
        metrics_url: str = "",
    ) -> None:
        """Starts nothing yet.

        Args:
            name: Such as `worker-1`.
            address: Host and port that it listens on.
            command: Its command line.
            is_healthy: Asks it; blocks.
            log: Where its output goes, after that of earlier starts.
            metrics_url: Where its metrics are; empty without.
        """
        self.name, self.address, self.metrics_url = name, address, metrics_url
        self._command, self._is_healthy, self._log = command, is_healthy, log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id; raises RuntimeError if it does not run."""
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._process.pid

    def start(self) -> None:
        """Starts it; it is of use once `until_healthy` returns."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=os.environ | _ENVIRONMENT
            )

    async def until_healthy(self) -> None:
        """Waits until it can work; raises RuntimeError if it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not await asyncio.to_thread(self._is_healthy):
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self.log_end()}")
            await asyncio.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """Ends it without warning, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stops it, so that it keeps its connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it go on."""
        os.kill(self.pid, signal.SIGCONT)

    async def end(self) -> None:
        """Ends it as an init system does.

        Raises:
            RuntimeError: It does not end, or not with code 0.
        """
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            code = await asyncio.to_thread(process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"{self.name} does not end on SIGTERM") from None
        self._process = None
        if code != 0:
            raise RuntimeError(f"{self.name} ended with code {code}:\n{self.log_end()}")

    def log_end(self) -> str:
        """Returns the last lines that it wrote."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])


def serves_grpc(address: tuple[str, int]) -> Callable[[], bool]:
    """Returns the question whether a gRPC service says SERVING."""
    return lambda: is_serving("{}:{}".format(*address), timeout=_PROBE_SECONDS)


def serves_http(address: tuple[str, int]) -> Callable[[], bool]:
    """Returns the question whether /health is answered 200."""

    def ask() -> bool:
        url = "http://{}:{}/health".format(*address)
        try:
            with urllib.request.urlopen(url, timeout=_PROBE_SECONDS):
                return True
        except (urllib.error.URLError, OSError):
            return False

    return ask


def answers_ping(address: tuple[str, int]) -> Callable[[], bool]:
    """Returns the question whether a Redis answers."""

    def ask() -> bool:
        try:
            with socket.create_connection(address, timeout=_PROBE_SECONDS) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) == b"+PONG\r\n"
        except OSError:
            return False

    return ask
