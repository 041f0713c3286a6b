"""Starts the ranks of one machine, and ends all when one ends.

It imports no torch: the process that waits stays small.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from optimist_common.process import end_with_this_process
from optimist_worker.execution.ranks import LOOPBACK, LocalRanks

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_END_SECONDS = 10.0
"""How long ranks may take to end after the first."""

Process = subprocess.Popen[bytes]


def run_local_ranks(local: LocalRanks, arguments: Sequence[str]) -> int:
    """Runs the worker once for each rank; SIGTERM and SIGINT end all in good order.

    Args:
        local: The ranks.
        arguments: The worker's command line.

    Returns:
        The exit code: 0 if all ended well, 2 if one could not start, else that of the first that
        failed.
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
