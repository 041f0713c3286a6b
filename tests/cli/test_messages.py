"""What a user reads when something is wrong at start: one line, and exit code 2."""

import socket
import subprocess
import sys

import pytest

from tests.stack import BUNDLED_MODEL, free_port

MODEL = f"--model {BUNDLED_MODEL}"
MISSING = "/nowhere/at/all"


def run(words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optimist_cli", *words.split()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("serve --no-such-flag 1", ("optimist serve: ", "--no-such-flag")),
        (f"gateway --model {MISSING} --port FREE", (MISSING,)),
        (f"serve {MISSING} --port FREE", (MISSING,)),
        ("scheduler --port TAKEN", ("--port", "TAKEN")),
        (f"gateway {MODEL} --port TAKEN", ("--port", "TAKEN")),
        ("complete Repeat. --url http://localhost:FREE", ("http://localhost:FREE",)),
        ("bake", ("'bake'",)),
    ],
)
def test_what_is_wrong_is_named_in_one_line(words: str, named: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"TAKEN": str(taken.getsockname()[1]), "FREE": str(free_port())}
        for name, port in ports.items():
            words = words.replace(name, port)
            named = tuple(part.replace(name, port) for part in named)
        done = run(words)
    (line,) = done.stderr.strip().splitlines()
    assert done.returncode == 2
    assert all(part in line for part in named)


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("serve", "complete", "bench", "gateway"))
