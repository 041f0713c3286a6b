"""Commands that a test runs to their end, and conditions that it waits for."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]


def run(*command: str | Path, timeout: float = 600.0, **options: Any) -> str:
    """Runs a command, in the repository if `options` of subprocess do not say where.

    Returns what it printed.

    Raises:
        AssertionError: It failed; the text is what it said.
    """
    options = {"cwd": REPOSITORY, "capture_output": True, "text": True} | options
    result = subprocess.run(command, timeout=timeout, check=False, **options)
    assert result.returncode == 0, f"{' '.join(map(str, command))}: {result.stdout}{result.stderr}"
    return str(result.stdout)


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Waits for a condition; raises AssertionError if it takes too long."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)
