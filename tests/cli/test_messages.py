"""What a user reads when something is wrong at start: one line, and exit code 2."""

import socket
import subprocess
import sys

import pytest

from tests.stack import BUNDLED_MODEL, free_port

NEED_A_MODEL = ("serve", "gateway", "worker", "proposer")
MODEL = f"--model {BUNDLED_MODEL}"
MISSING = "/nowhere/at/all"


def run(words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optimist_cli", *words.split()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        *(
            (f"{command} --no-such-flag 1", (f"optimist {command}: ", "--no-such-flag"))
            for command in ("scheduler", "serve")
        ),
        *((f"{command} --model {MISSING} --port FREE", (MISSING,)) for command in NEED_A_MODEL[1:]),
        *(
            (f"{command} --port TAKEN", ("--port", "TAKEN"))
            for command in ("scheduler", *(f"{name} {MODEL}" for name in ("serve", "gateway")))
        ),
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


def test_serve_says_which_model_is_missing() -> None:
    done = run(f"serve {MISSING} --port {free_port()}")
    assert done.returncode == 2
    assert MISSING in done.stderr.strip().splitlines()[-1]


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("serve", "complete", "bench", "gateway"))
