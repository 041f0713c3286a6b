"""Starts a test module as two ranks, for tests."""

import os
import subprocess
import sys
from collections.abc import Sequence

from optimist_worker.execution.ranks import LOOPBACK, LocalRanks
from tests.stack import free_port


def run_pair(module: str, arguments: Sequence[str]) -> list[tuple[int, str]]:
    """Runs `python -m MODULE ARGUMENTS` as two ranks; returns what each exits with and prints."""
    ranks = LocalRanks(0, 2, 2, LOOPBACK, 0)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, **environment, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for environment in ranks.environments(free_port())
    ]
    try:
        outputs = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.wait() for process in processes]
    return list(zip(codes, outputs, strict=True))
