"""The gateway as a process."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from optimist_gateway.__main__ import main


def test_a_port_in_use_is_named(model_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--model", str(model_directory), "--port", str(port)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"optimist gateway: cannot listen on 127.0.0.1:{port}: ")


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    command = [sys.executable, "-m", "optimist_gateway", "--model", missing, "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert missing in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--model"),
        (["--model", "m", "--max-num-requests", "0"], "--max-num-requests"),
        (["--model", "m", "--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--model", "m", "--log-level", "loud"], "--log-level"),
    ],
)
def test_wrong_settings_are_named(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
