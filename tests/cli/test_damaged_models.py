"""Damaged model directories as a user meets them: each service, and `optimist serve`."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import damage
from tests.damage import CONFIG, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS, change, write
from tests.stack import descendants, free_port

CASES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "nan": ("worker", damage.fill(float("nan")), "q_proj.weight has 1 values that are not finite"),
    "shape": (
        "worker",
        change(CONFIG, vocab_size=640),
        "has the shape [320, 64] and config.json asks for [640, 64] (vocab_size is 640)",
    ),
    "newer": (
        *("gateway", damage.change_model(type="New")),
        'cannot read its model ("New"): data did not match any variant of untagged enum',
    ),
    "template": (
        *("gateway", change(TOKENIZER_CONFIG, chat_template="{% for %}")),
        "the chat template cannot be read: Expected an expression",
    ),
    "token": (
        *("proposer", change(TOKENIZER, added_tokens=[{"id": 2**31, "content": "new"}])),
        "tokenizer.json: added_tokens[0].id is 2147483648; it must be a whole number to 4194304",
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


@pytest.mark.parametrize("apply", [damage.fill(float("inf")), write(WEIGHTS, b"{}" * 9)])
def test_serve_hands_the_line_on_and_ends_the_others(
    apply: Callable[[Path], object], model: Path, tmp_path: Path
) -> None:
    path = damage.damaged(model, tmp_path / "model", damage.Damage("", apply, ""))
    done = run("serve", str(path), "--workers", "1", "--proposers", "1")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    start = f"optimist serve: worker could not start: optimist worker: --model: {path}: model.l|"
    start += f"optimist serve: worker could not start: optimist worker: --model: {path}: model.sa"
    assert re.match(start, last), last
    assert not [one for one in descendants(1).values() if str(path) in one]
