"""SDKs: conversations with tools, structured output and streams, as their users write them.

Each script asserts what its user sees; it runs in an environment of its own.
"""

import os
from pathlib import Path

import pytest

from tests.clients.conversations.conftest import Served
from tests.clients.conversations.scripted import obey
from tests.command import run
from tests.stack import REPOSITORY

HERE = Path(__file__).parent
SDKS = HERE / "sdks"
PYTHON = REPOSITORY / ".venv-clients" / "bin" / "python"
NODE = HERE / "node_modules" / ".bin" / "node"
OFFLINE = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_COLOR": "1"}
PYTHON_SCRIPTS = ("openai_sdk", "langchain_sdk", "litellm_sdk", "instructor_sdk", "pydantic_ai_sdk")
NODE_SCRIPTS = ("openai_sdk", "ai_sdk")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", PYTHON_SCRIPTS)
def test_python(served: Served, name: str) -> None:
    if not PYTHON.exists():
        pytest.skip("`make clients` was not run")
    with served.scheduler.follow(obey):
        run(PYTHON, SDKS / f"{name}.py", served.url, env=OFFLINE, timeout=120)


@pytest.mark.parametrize("name", NODE_SCRIPTS)
def test_node(served: Served, name: str) -> None:
    if not NODE.exists():
        pytest.skip("`make clients` was not run")
    with served.scheduler.follow(obey):
        run(NODE, SDKS / f"{name}.mjs", served.url, env=OFFLINE, timeout=120)
