"""Real services as a user starts them, for tests."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

import httpx

from optimist_cli.serve.ports import free_ports
from optimist_common.network.health import is_serving

REPOSITORY = Path(__file__).parent.parent
BUNDLED_MODEL = REPOSITORY / "models" / "tiny-edit"
MODEL_FLAG = ("--model", str(BUNDLED_MODEL))
START_SECONDS = 240.0
END_SECONDS = 30.0
# On a busy machine a proposer's answer may be late, and a test would see fewer predicted tokens;
# and what passes cost there says nothing.
PATIENT = {"OPTIMIST_SCHEDULER_PROPOSER_WAIT_MS": "1000", "OPTIMIST_WORKER_COST_SECONDS": "0"}


def free_port() -> int:
    """Returns a port of the loopback that nobody listens on."""
    return free_ports(1)[0]


def wait_until_healthy(url: str) -> None:
    """Waits until a gateway has found its scheduler."""
    deadline = time.monotonic() + START_SECONDS
    while not httpx.get(f"{url}/health", timeout=5.0).is_success:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read_metrics(url: str) -> dict[str, float]:
    """Returns all figures of a service, by name and labels as they are printed."""
    text = httpx.get(url, timeout=10.0, trust_env=False).raise_for_status().text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


class Stack:
    """`optimist serve` with the bundled model on free ports."""

    def __init__(self, *options: str, **variables: str) -> None:
        """Waits until everything serves.

        Args:
            options: More of the command line.
            variables: Of the environment.
        """
        port, grpc_port = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self.grpc_address = f"127.0.0.1:{grpc_port}"
        command = [sys.executable, "-m", "optimist_cli", "serve", str(BUNDLED_MODEL)]
        self._process = subprocess.Popen(
            [*command, "--port", str(port), "--grpc-port", str(grpc_port), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | PATIENT | variables,
        )
        self.output = ""
        self._wait_for("Optimist serves")

    def service_pid(self, name: str) -> int:
        """Returns the process id of a service, which may have been restarted."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
                command = (path.parent / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == self._process.pid and f"optimist_{name}".encode() in command:
                return int(path.parent.name)
        raise AssertionError(f"no {name} runs")

    def kill_service(self, name: str) -> None:
        """Kills a service without warning."""
        os.kill(self.service_pid(name), signal.SIGKILL)

    def service_pids(self) -> list[int]:
        """Returns the process ids of all services."""
        return [self.service_pid(name) for name in ("proposer", "worker", "scheduler", "gateway")]

    def end(self, number: signal.Signals) -> int:
        """Ends it by a signal; returns the exit code."""
        self._process.send_signal(number)
        output, _ = self._process.communicate(timeout=30)
        self.output += output.decode()
        return self._process.returncode

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends everything as an init system or Ctrl-C does; AssertionError if that is not clean."""
        pids = self.service_pids()
        assert self.end(number) == 0, self.output
        assert "Traceback" not in self.output, self.output
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)

    def _wait_for(self, text: str) -> None:
        stream = self._process.stdout
        assert stream is not None
        deadline = time.monotonic() + START_SECONDS
        while text not in self.output:
            ready, _, _ = select.select([stream], [], [], 1.0)
            data = os.read(stream.fileno(), 65536) if ready else b""
            self.output += data.decode(errors="replace")
            ended = ready and not data
            if ended or time.monotonic() > deadline:
                self._process.kill()
                self._process.communicate()
                raise AssertionError(f"the services did not start:\n{self.output}")


class Process:
    """A process with its health; it keeps its command when it is started again."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        is_healthy: Callable[[], bool],
        environment: Mapping[str, str],
        log: Path | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            name: Such as `worker-1`.
            command: Its command line.
            is_healthy: Asks it; blocks.
            environment: More variables than this process has.
            log: Where its output goes, after that of earlier starts; None for this process's own.
        """
        self.name = name
        self._command, self._is_healthy = command, is_healthy
        self._environment, self._log = environment, log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id; raises RuntimeError if it does not run."""
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it; it is of use once `wait_until_healthy` returns."""
        with self._log.open("ab") if self._log else nullcontext() as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=os.environ | self._environment
            )

    def wait_until_healthy(self) -> None:
        """Waits until it can work; raises RuntimeError if it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not self._is_healthy():
            if not self.is_running or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.name} did not start:\n{self._log_end()}")
            time.sleep(0.1)

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal, such as SIGSTOP, with which it keeps connections and says nothing."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it without warning, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Ends it as an init system does, if it was not killed.

        Raises:
            RuntimeError: It does not end, or not with code 0, or had ended by itself.
        """
        if self._process is None:
            return
        self._process.terminate()
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"{self.name} does not end on SIGTERM") from None
        self._process = None
        if code != 0:
            raise RuntimeError(f"{self.name} ended with code {code}:\n{self._log_end()}")

    def _log_end(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log else []
        return "\n".join(lines[-30:])


class Service(Process):
    """One service, `optimist NAME`, on a free port if none is given; healthy when constructed."""

    def __init__(self, name: str, *options: str, port: int = 0) -> None:
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "optimist_cli", name, "--port", str(self.port), *options]
        super().__init__(name, command, health_of(name, self.address), PATIENT)
        self.start()
        self.wait_until_healthy()


def health_of(role: str, address: str) -> Callable[[], bool]:
    """Returns the question whether a service at an address can work."""
    if role != "gateway":
        return lambda: is_serving(address, timeout=1.0)

    def ask() -> bool:
        try:
            return httpx.get(f"http://{address}/health", timeout=1.0, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    return ask


def start(stack: ExitStack, name: str, *options: str, port: int = 0) -> Service:
    """Starts a service, see `Service`, which the stack stops."""
    service = Service(name, *options, port=port)
    stack.callback(service.stop)
    return service
