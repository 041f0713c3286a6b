"""Damaged model directories as a user meets them: each service, and `optimist serve`."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import damage
from tests.damage import CONFIG, TOKENIZER_CONFIG, WEIGHTS, change, write
from tests.stack import descendants, free_port

CASES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "nan": ("worker", damage.fill(float("nan")), "q_proj.weight has 1 values that are not finite"),
    "template": (
        *("gateway", change(TOKENIZER_CONFIG, chat_template="{% for %}")),
        "the chat template cannot be read: Expected an expression",
    ),
    "heads": (
        *("proposer", change(CONFIG, num_attention_heads=0)),
        "config.json: num_attention_heads is 0; it must be a whole number from 1",
    ),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage.make_model(tmp_path_factory.mktemp("good"))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optimist_cli", *words, "--port", str(free_port())]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("name", CASES)
def test_each_service_says_one_line(name: str, model: Path, tmp_path: Path) -> None:
    service, apply, words = CASES[name]
    path = damage.damaged(model, tmp_path / "model", damage.Damage(name, apply, words))
    done = run(service, "--model", str(path), "--log-level", "error")
    (line,) = done.stderr.strip().splitlines()
    assert done.returncode == 2
    assert line.startswith(f"optimist {service}: --model: ")
    assert words in line


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
