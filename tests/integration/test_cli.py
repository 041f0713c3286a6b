"""The command line against running services."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.stack import Stack, wait_for_end

CODE = 'def area(width, height):\n    """Return the area."""\n    return width * height\n'


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optimist_cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)


def test_complete_edits_a_file_and_colours_what_was_predicted(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "area.py"
    file.write_text(CODE)
    options = ("--file", str(file), "--url", stack.url, "--colour", "always")
    done = run("complete", "Rename `width` to `breadth`.", *options)
    plain = done.stdout.replace("\x1b[32m", "").replace("\x1b[0m", "")
    assert plain.strip() == CODE.replace("width", "breadth").strip()
    assert "\x1b[32m" in done.stdout
    assert "of them predicted" in done.stderr


def test_bench_edits_prints_nothing_but_its_report(stack: Stack) -> None:
    done = run("bench", "edits", "--edits", "7", "--seed", "5", "--url", stack.url, "--json")
    report = json.loads(done.stdout)
    assert report["edits"] == 7
    assert report["identical_to_plain"] is True
    assert report["exact_match"] >= 0.8
    assert report["tokens_per_pass"] >= 6
    assert min(report["acceptance_rate_mean"], report["acceptance_rate_p50"]) > 0.3
    assert min(report["plain_seconds"], report["predicted_seconds"], report["speedup"]) > 0


def test_services_end_when_their_supervisor_is_killed() -> None:
    stack = Stack()
    pids = stack.service_pids()
    assert stack.end(signal.SIGKILL) == -signal.SIGKILL
    wait_for_end(pids)
