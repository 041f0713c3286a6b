"""`optimist serve` hands on in one line what is wrong with a model directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import damage
from tests.damage import WEIGHTS, write
from tests.stack import descendants, free_port


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage.make_model(tmp_path_factory.mktemp("good"))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optimist_cli", *words, "--port", str(free_port())]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_serve_hands_the_line_on_and_ends_the_others(model: Path, tmp_path: Path) -> None:
    apply = write(WEIGHTS, b"{}" * 9)
    path = damage.damaged(model, tmp_path / "model", damage.Damage("", apply, ""))
    done = run("serve", str(path), "--workers", "1", "--proposers", "1")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    start = f"optimist serve: worker could not start: optimist worker: --model: {path}: model.sa"
    assert last.startswith(start)
    assert not [one for one in descendants(1).values() if str(path) in one]
