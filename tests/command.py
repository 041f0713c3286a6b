"""Commands that a test runs to their end."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.stack import REPOSITORY


def run(
    *command: str | Path,
    cwd: Path = REPOSITORY,
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
    stdin: str = "",
) -> str:
    """Runs a command; returns what it printed.

    Raises:
        AssertionError: It failed; the text is what it said.
    """
    result = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        timeout=timeout,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{' '.join(map(str, command))}: {result.stdout}{result.stderr}"
    return result.stdout


def promtool() -> str:
    """Returns the promtool that `make test` provides, or this machine's."""
    own = REPOSITORY / ".venv" / "bin" / "promtool"
    found = str(own) if own.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool: `make test` provides one")
    return found
