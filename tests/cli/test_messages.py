"""What a user reads when something is wrong at start: one line, and exit code 2."""

import socket
import subprocess
import sys

import pytest

from optimist_cli.__main__ import main
from tests.stack import free_port

MISSING = "/nowhere/at/all"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("serve --no-such-flag 1", ("optimist serve: ", "--no-such-flag")),
        (f"serve {MISSING} --port FREE", ("optimist serve: ", MISSING)),
        ("complete Repeat. --url http://localhost:FREE", ("http://localhost:FREE",)),
        ("bake", ("'bake'",)),
    ],
)
def test_what_is_wrong_is_named_in_one_line(
    words: str, named: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    port = str(free_port())
    assert main(words.replace("FREE", port).split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(part.replace("FREE", port) in line for part in named)


@pytest.mark.parametrize(
    ("words", "named"),
    [(f"gateway --model {MISSING} --port 0", MISSING), ("scheduler --port TAKEN", "--port")],
)
def test_a_service_says_it_too(words: str, named: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = words.replace("TAKEN", str(taken.getsockname()[1]))
        command = [sys.executable, "-m", "optimist_cli", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    (line,) = done.stderr.strip().splitlines()
    assert (done.returncode, named in line) == (2, True)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("serve", "complete", "bench", "gateway"))
