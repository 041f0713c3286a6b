"""Commands that a test runs to their end."""

import subprocess
from collections.abc import Mapping
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
