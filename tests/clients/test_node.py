"""Clients in JavaScript, as `npm install` brings them."""

import shutil
from pathlib import Path

import pytest

from tests.command import run
from tests.stack import REPOSITORY, WHITE_SPACE, Stack, our_engine


@pytest.mark.parametrize(
    "name", ["openai", pytest.param("ai_sdk", marks=our_engine(reason=WHITE_SPACE))]
)
def test_node(stack: Stack, name: str) -> None:
    node = shutil.which("node")
    assert node is not None, "node is missing"
    assert (REPOSITORY / "node_modules" / "openai").is_dir(), "npm install was not run"
    run(node, Path(__file__).with_name("scripts") / f"{name}.mjs", stack.url, timeout=120)
