"""Which part of a model a process holds, and the processes of a machine, which end together.

A worker runs below torchrun (PyTorch), in a pod of a LeaderWorkerSet (Kubernetes), or on a machine
by itself. Ranks of one stage are neighbours: they exchange far more than two stages do. Nothing
here imports torch: the process that waits for ranks stays small.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from optimist_common.errors import SetupError
from optimist_common.process import end_with_this_process

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 29500
"""Where rank 0 waits for those on other machines, as with torchrun."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where a process stands among those that hold a model together."""

    rank: int
    world_size: int
    local_rank: int
    """Its number on its machine, which is that of its device."""
    tensor_parallel_size: int
    """Ranks that hold parts of each layer of a stage."""
    master_host: str
    """Where rank 0 is found."""
    master_port: int

    @property
    def is_leader(self) -> bool:
        """Whether it speaks with the scheduler."""
        return self.rank == 0

    @property
    def stage(self) -> int:
        """Which layers it holds, 0 for the first."""
        return self.rank // self.tensor_parallel_size

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return self.world_size // self.tensor_parallel_size


@dataclass(frozen=True, slots=True)
class LocalRanks:
    """The ranks that a process has to start on its machine."""

    first_rank: int
    number: int
    world_size: int
    master_host: str
    master_port: int
    """0 for a free one."""

    def environments(self, master_port: int) -> list[dict[str, str]]:
        """Returns what `find_ranks` reads in each of them, as torchrun would set it."""
        return [
            {
                "RANK": str(self.first_rank + local_rank),
                "LOCAL_RANK": str(local_rank),
                "WORLD_SIZE": str(self.world_size),
                "MASTER_ADDR": self.master_host,
                "MASTER_PORT": str(master_port),
            }
            for local_rank in range(self.number)
        ]


def find_ranks(
    environment: Mapping[str, str],
    tensor_parallel_size: int,
    pipeline_parallel_size: int,
    master_port: int = 0,
) -> Ranks | LocalRanks | None:
    """Finds out from environment variables what this process is.

    Rank 0 waits for the others at the port; 0 is a free one on one machine, and DEFAULT_PORT
    between machines. Returns the rank that it is, or the ranks that it has to start; None if it
    holds the whole model. Raises SetupError if the sizes do not fit the number of processes, or a
    variable is wrong.
    """
    number = tensor_parallel_size * pipeline_parallel_size
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _below_torchrun(environment, tensor_parallel_size, number)
    num_pods = 1
    if "LWS_GROUP_SIZE" in environment:
        num_pods = _read(environment, "LWS_GROUP_SIZE", 1, 2**16)
    if number % num_pods:
        raise SetupError(
            f"--tensor-parallel-size, --pipeline-parallel-size: {number} processes cannot be "
            f"divided among {num_pods} pods; change them or the size of the LeaderWorkerSet"
        )
    if number == 1:
        return None
    if num_pods == 1:
        return LocalRanks(0, number, number, LOOPBACK, master_port)
    pod = _read(environment, "LWS_WORKER_INDEX", 0, num_pods - 1)
    host = environment.get("LWS_LEADER_ADDRESS")
    if not host:
        raise SetupError("LWS_LEADER_ADDRESS: must be set beside LWS_GROUP_SIZE")
    size = number // num_pods
    return LocalRanks(pod * size, size, number, host, master_port or DEFAULT_PORT)


def _below_torchrun(
    environment: Mapping[str, str], tensor_parallel_size: int, number: int
) -> Ranks | None:
    world_size = _read(environment, "WORLD_SIZE", 1, 2**16)
    if world_size != number:
        raise SetupError(
            f"--tensor-parallel-size, --pipeline-parallel-size: they need {number} processes, and "
            f"WORLD_SIZE is {world_size}; start as many, or change them"
        )
    if number == 1:
        return None
    rank = _read(environment, "RANK", 0, world_size - 1)
    local_rank = _read(environment, "LOCAL_RANK", 0, world_size - 1, "0")
    host = environment.get("MASTER_ADDR", LOOPBACK)
    port = _read(environment, "MASTER_PORT", 1, 65535, str(DEFAULT_PORT))
    return Ranks(rank, world_size, local_rank, tensor_parallel_size, host, port)


def _read(
    environment: Mapping[str, str], name: str, least: int, most: int, default: str | None = None
) -> int:
    """Returns a variable's number; raises SetupError if it is none or out of bounds."""
    text = environment.get(name, default)
    if text is None or not text.isdecimal() or not least <= int(text) <= most:
        raise SetupError(f"{name}: must be a number from {least} to {most}, not {text!r}")
    return int(text)


logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_END_SECONDS = 10.0
"""How long ranks may take to end after the first."""

Process = subprocess.Popen[bytes]


def run_local_ranks(local: LocalRanks, arguments: Sequence[str]) -> int:
    """Runs the worker's command line for each rank; SIGTERM and SIGINT end all in good order.

    Returns the exit code: 0 if all ended well, 2 if one could not start, else that of the first
    that failed.
    """
    command = [sys.executable, "-m", "optimist_worker", *arguments]
    environments = local.environments(local.master_port or _free_port())
    processes = [
        # The interpreter that runs this, and the command line that it was given.
        subprocess.Popen(  # noqa: S603
            command,
            env={**_defaults(local), **os.environ, **environment},
            # Also while it waits for others to join.
            preexec_fn=end_with_this_process(signal.SIGKILL),
        )
        for environment in environments
    ]
    try:
        with _forwarded_signals(processes):
            while all(process.poll() is None for process in processes):
                time.sleep(_POLL_SECONDS)
            _wait_for_all(processes)
    finally:
        for process in processes:
            process.kill()
    codes = [process.wait() for process in processes]
    failed = [code for code in codes if code]
    if not failed:
        return 0
    logger.error("a rank has failed; exit codes by rank: %s", codes)
    return 2 if 2 in failed else next((code for code in failed if code > 0), 128 - failed[0])


def _defaults(local: LocalRanks) -> dict[str, str]:
    """Returns variables of the ranks, where they are not set.

    Ranks share the cores, and what those of one machine say to each other stays off its network.
    """
    defaults = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // local.number))}
    if local.master_host == LOOPBACK:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        defaults |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), loopback)
    return defaults


def _wait_for_all(processes: list[Process]) -> None:
    """Waits until all have ended, for a while; they end each other."""
    deadline = time.monotonic() + _END_SECONDS
    while any(process.poll() is None for process in processes):
        if time.monotonic() > deadline:
            logger.error("a rank does not end and is killed")
            return
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _forwarded_signals(processes: list[Process]) -> Iterator[None]:
    """Hands SIGTERM and SIGINT to the first rank, which has the others end."""

    def forward(number: int, _: FrameType | None) -> None:
        processes[0].send_signal(number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, forward) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])
