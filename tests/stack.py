"""Real services as a user starts them, for tests."""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from optimist_cli.serve.ports import free_ports
from optimist_common.network.health import is_serving

REPOSITORY = Path(__file__).parent.parent
BUNDLED_MODEL = REPOSITORY / "models" / "tiny-edit"
MODEL_FLAG = ("--model", str(BUNDLED_MODEL))
START_SECONDS = 120.0
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


class Service:
    """One service, `optimist NAME`, on a free port if none is given; healthy when constructed."""

    def __init__(self, name: str, *options: str, port: int = 0) -> None:
        port = port or free_port()
        self.address = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "optimist_cli", name, "--port", str(port)]
        self._process = subprocess.Popen([*command, *options], env=os.environ | PATIENT)
        self._wait_until_healthy(name)

    def kill(self) -> None:
        """Ends it without warning."""
        self._process.kill()
        self._process.wait()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._process.send_signal(number)

    def wait(self) -> None:
        """Waits until it has ended."""
        self._process.wait(timeout=30)

    def stop(self) -> None:
        """Ends it cleanly, if it still runs; raises AssertionError if it does not."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        assert self._process.wait(timeout=30) == 0

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.address.rpartition(":")[2])

    def _wait_until_healthy(self, name: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._is_healthy(name):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise AssertionError(f"{name} did not start")
            time.sleep(0.1)

    def _is_healthy(self, name: str) -> bool:
        if name != "gateway":
            return is_serving(self.address, timeout=1.0)
        try:
            return httpx.get(f"http://{self.address}/health", timeout=1.0).is_success
        except httpx.HTTPError:
            return False


def start(stack: ExitStack, name: str, *options: str, port: int = 0) -> Service:
    """Starts a service, see `Service`, which the stack stops."""
    service = Service(name, *options, port=port)
    stack.callback(service.stop)
    return service
