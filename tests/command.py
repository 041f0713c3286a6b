"""Commands that a test runs to their end, and conditions that it waits for."""

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.stack import REPOSITORY


def run(
    *command: str | Path,
    cwd: Path = REPOSITORY,
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
) -> str:
    """Runs a command; returns what it printed.

    Raises:
        AssertionError: It failed; the text is what it said.
    """
    result = subprocess.run(
        command, cwd=cwd, env=env, timeout=timeout, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{' '.join(map(str, command))}: {result.stdout}{result.stderr}"
    return result.stdout


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Waits for a condition; raises AssertionError if it takes too long."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)
