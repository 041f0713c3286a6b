"""What a user reads when something is wrong at start: one line, and exit code 2."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack import BUNDLED_MODEL, free_port


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optimist_cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def one_line(*words: str) -> str:
    """Runs a command that must fail; returns its one line."""
    done = run(*words)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize("command", ["serve", "gateway", "scheduler", "worker", "proposer"])
def test_a_wrong_flag_is_named(command: str) -> None:
    line = one_line(command, "--no-such-flag", "1")
    assert line.startswith(f"optimist {command}: ")
    assert "--no-such-flag" in line


@pytest.mark.parametrize("command", ["gateway", "scheduler", "worker", "proposer"])
def test_a_wrong_value_is_named(command: str) -> None:
    line = one_line(command, "--port", "many")
    assert "--port" in line
    assert "many" in line


@pytest.mark.parametrize("command", ["gateway", "worker", "proposer"])
def test_a_missing_model_is_named(command: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing-here")
    assert missing in one_line(command, "--model", missing, "--port", str(free_port()))


def test_serve_says_which_model_is_missing(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing-here")
    done = run("serve", missing, "--port", str(free_port()))
    assert done.returncode == 2
    assert missing in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("command", ["serve", "gateway", "scheduler", "worker", "proposer"])
def test_a_port_in_use_is_named(command: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        model = [] if command == "scheduler" else ["--model", str(BUNDLED_MODEL)]
        line = one_line(command, *model, "--port", str(port))
    assert str(port) in line
    assert "--port" in line


def test_an_unreachable_redis_is_named() -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    line = one_line(
        "proposer", "--model", str(BUNDLED_MODEL), "--store", url, "--port", str(free_port())
    )
    assert url in line


def test_an_unknown_command_is_named() -> None:
    assert "'bake'" in one_line("bake")


def test_an_unreachable_gateway_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert url in one_line("complete", "Repeat.", "--url", url)


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("serve", "complete", "bench", "gateway"))
