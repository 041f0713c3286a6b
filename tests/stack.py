"""Real services as a user starts them, for tests."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import redis

from optimist_cli.serve.ports import free_ports
from optimist_common.network.health import is_serving

REPOSITORY = Path(__file__).parent.parent
BUNDLED_MODEL = REPOSITORY / "models" / "tiny-edit"
MODEL_FLAG = ("--model", str(BUNDLED_MODEL))
START_SECONDS = 240.0
END_SECONDS = 30.0
# On a busy machine a proposer's answer may be late, or not seem worth a wait, and what passes cost
# says nothing: drafts may not seem to pay, nor a queue to move.
PATIENT = {
    "OPTIMIST_SCHEDULER_MAX_WAIT_SECONDS": "600",
    "OPTIMIST_SCHEDULER_PROPOSER_WAIT": "always",
    "OPTIMIST_SCHEDULER_PROPOSER_WAIT_MS": "1000",
    "OPTIMIST_WORKER_COST_SECONDS": "0",
}
_KERNELS = REPOSITORY / "services" / "worker" / "optimist_worker" / "cpu_kernels"
EXACT_DTYPE = "float32" if any(_KERNELS.glob("compiled-*.so")) else "float64"
"""In which every token is the same however wide a pass is: our kernels see to that, or digits."""
EXACT = ("--dtype", EXACT_DTYPE)
ENGINE_PYTHON = os.environ.get("OPTIMIST_TEST_ENGINE_PYTHON", "")
"""Python of an environment with vLLM: it runs the model of `Stack` instead of our own services."""
our_engine = partial(pytest.mark.skipif, bool(ENGINE_PYTHON))
"""Marks what only our own engine promises; `reason` says why."""
WHITE_SPACE = "vLLM's grammars do not bound white space, which this model loves"
VLLM_FLAGS = ("--", "--dtype", "float32", "--enforce-eager")
VLLM_VARIABLES = {
    # Threads that share the work of small models would only wait for each other.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


SERVICES = ("proposer", "worker", "scheduler", "gateway")


def free_port() -> int:
    """Returns a port of the loopback that nobody listens on."""
    return free_ports(1)[0]


def read_metrics(url: str) -> dict[str, float]:
    """Returns all figures of a service, by name and labels as they are printed."""
    text = httpx.get(url, timeout=10.0, trust_env=False).raise_for_status().text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def read_totals(url: str) -> dict[str, float]:
    """Returns the figures by their names, each the sum over its labels."""
    totals: dict[str, float] = {}
    for labelled, value in read_metrics(url).items():
        name = labelled.partition("{")[0]
        totals[name] = totals.get(name, 0.0) + value
    return totals


def descendants(parent: int) -> dict[int, str]:
    """Returns the command lines of all processes that descend from one, by their ids."""
    found: dict[int, str] = {}
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        # What ends meanwhile is left out, and so is what has ended and was not waited for.
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                if command := Path(f"/proc/{child}/cmdline").read_text():
                    found |= {child: command} | descendants(child)
    return found


def wait_until(holds: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Waits for a condition; raises AssertionError if it takes too long."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)


def wait_for_end(pids: Iterable[int]) -> None:
    """Waits until processes have ended, each waited for by its parent."""
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "processes", END_SECONDS
    )


class Stack:
    """`optimist serve` on free ports, with the bundled model if no other is named."""

    def __init__(
        self,
        *options: str,
        model: str = str(BUNDLED_MODEL),
        engine_python: str = ENGINE_PYTHON,
        vllm_flags: Sequence[str] = (),
        **variables: str,
    ) -> None:
        """Waits until everything serves, with more options and variables of the environment.

        `engine_python` is that of an environment with vLLM, or empty for our own services; there
        vLLM gets more flags.
        """
        port, grpc_port = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self.grpc_address = f"127.0.0.1:{grpc_port}"
        command = [sys.executable, "-m", "optimist_cli", "serve", model]
        self._modules = {name: f"optimist_{name}" for name in SERVICES}
        if engine_python:
            options = (*options, "--engine", "vllm", "--engine-python", engine_python)
            options = (*options, *VLLM_FLAGS, *vllm_flags)
            variables = VLLM_VARIABLES | variables
            self._modules = {"engine": "optimist_vllm.engine", "gateway": "optimist_gateway"}
        self._process = subprocess.Popen(
            [*command, "--port", str(port), "--grpc-port", str(grpc_port), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | PATIENT | variables,
        )
        self.output = ""
        self._wait_until_it_serves()

    def service_pids(self, *names: str) -> list[int]:
        """Returns the process ids of all services, or of some; they may have been restarted."""
        found = descendants(self._process.pid).items()
        names = names or tuple(self._modules)
        words = [f"\0{self._modules[name]}\0" for name in names]
        pids = [pid for word in words for pid, command in found if word in command]
        assert len(pids) == len(names), f"of {names} there are {pids}"
        return pids

    def is_started_again(self, name: str, pids: list[int]) -> bool:
        """Returns whether a service runs as another process than those."""
        word = f"\0{self._modules[name]}\0"
        found = descendants(self._process.pid).items()
        return any(word in command and pid not in pids for pid, command in found)

    def kill_service(self, name: str) -> None:
        """Kills a service without warning."""
        (pid,) = self.service_pids(name)
        os.kill(pid, signal.SIGKILL)

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

    def _wait_until_it_serves(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while "Optimist serves" not in self.output:
            ready, _, _ = select.select([stream], [], [], START_SECONDS)
            data = os.read(stream.fileno(), 65536) if ready else b""
            self.output += data.decode(errors="replace")
            if not data:
                self._process.kill()
                self._process.communicate()
                raise AssertionError(f"the services did not start:\n{self.output}")


class Process:
    """A service as a process of its own; it keeps its command when it is started again."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        address: str,
        environment: Mapping[str, str],
        log: Path | None = None,
        metrics_url: str = "",
    ) -> None:
        """Starts nothing yet.

        Args:
            name: Its role, such as `worker`, with a number if there are several: `worker-1`.
            command: Its command line.
            address: Host:port that it listens on.
            environment: More variables than this process has.
            log: Where its output goes, after that of earlier starts; None for this process's own.
            metrics_url: Where its metrics are; empty without.
        """
        self.name, self.command, self.address = name, command, address
        self.metrics_url = metrics_url
        self._environment, self._log = environment, log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def role(self) -> str:
        """What it is, such as `worker`."""
        return self.name.rstrip("0123456789-")

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

    def is_healthy(self) -> bool:
        """Asks whether it can work; blocks for a second at most."""
        try:
            match self.role:
                case "gateway":
                    url = f"http://{self.address}/health"
                    return httpx.get(url, timeout=1.0, trust_env=False).is_success
                case "redis":
                    url = f"redis://{self.address}"
                    return bool(redis.Redis.from_url(url, socket_timeout=1.0).ping())
        except (httpx.HTTPError, redis.RedisError):
            return False
        return is_serving(self.address, timeout=1.0)

    def start(self) -> None:
        """Starts it; it is of use once `wait_until_healthy` returns."""
        with self._log.open("ab") if self._log else nullcontext() as log:
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=os.environ | self._environment
            )

    def wait_until_healthy(self) -> None:
        """Waits until it can work; raises RuntimeError if it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not self.is_healthy():
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
    """One service, `optimist NAME`, on free ports; healthy when constructed."""

    def __init__(self, name: str, *options: str) -> None:
        port, metrics_port = free_ports(2)
        self._options = [*options, "--port", str(port)]
        self._options += ["--metrics-port", str(metrics_port)] if name != "gateway" else []
        self._flags = VLLM_FLAGS if name == "engine" else ()
        variables = PATIENT | (VLLM_VARIABLES if name == "engine" else {})
        metrics_url = f"http://127.0.0.1:{port if name == 'gateway' else metrics_port}/metrics"
        super().__init__(name, [], f"127.0.0.1:{port}", variables, metrics_url=metrics_url)
        self.restart()

    def restart(self, *options: str) -> None:
        """Starts it again with more options than it was given at first, at the same address."""
        self.stop()
        command = [sys.executable, "-m", "optimist_cli", self.name]
        self.command = [*command, *self._options, *options, *self._flags]
        self.start()
        self.wait_until_healthy()


def start(stack: ExitStack, name: str, *options: str) -> Service:
    """Starts a service, see `Service`, which the stack stops."""
    service = Service(name, *options)
    stack.callback(service.stop)
    return service


class Services(NamedTuple):
    """One of each but proposers, started one by one, so that each can be another in a moment."""

    worker: Service
    scheduler: Service
    gateway: Service

    @property
    def url(self) -> str:
        """Of the gateway."""
        return f"http://{self.gateway.address}"


def start_services(
    stack: ExitStack,
    proposers: Sequence[Service],
    worker: Sequence[str] = (),
    scheduler: Sequence[str] = (),
) -> Services:
    """Starts a worker and a scheduler with some options, and a gateway; the stack stops them."""
    working = start(stack, "worker", *MODEL_FLAG, *worker)
    peers = ",".join(one.address for one in proposers)
    options = ("--workers", working.address, "--proposers", peers, *scheduler)
    scheduling = start(stack, "scheduler", *options)
    gateway = start(stack, "gateway", *MODEL_FLAG, "--schedulers", scheduling.address)
    return Services(working, scheduling, gateway)
