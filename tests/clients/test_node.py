"""Clients in JavaScript, as `npm install` brings them."""

import shutil
import subprocess

import pytest

from tests.stack import REPOSITORY, Stack

SCRIPTS = REPOSITORY / "tests" / "clients" / "scripts"


@pytest.mark.parametrize("name", ["openai", "ai_sdk"])
def test_node(stack: Stack, name: str) -> None:
    node = shutil.which("node")
    assert node is not None, "node is missing"
    assert (REPOSITORY / "node_modules" / "openai").is_dir(), "npm install was not run"
    command = [node, str(SCRIPTS / f"{name}.mjs"), stack.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
