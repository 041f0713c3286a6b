"""SDKs: conversations with tools, structured output and streams, as their users write them.

Each script asserts what its user sees; it runs in an environment of its own.
"""

import os
from pathlib import Path

import pytest

from tests.clients.conversations.conftest import Served
from tests.clients.conversations.scripted import obey
from tests.clients.installed import NODE, PYTHON, needs
from tests.command import run

SDKS = Path(__file__).parent / "sdks"
OFFLINE = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_COLOR": "1"}
PROGRAMS = {".py": PYTHON / "python", ".mjs": NODE / "node"}
SCRIPTS = sorted(path for path in SDKS.iterdir() if path.suffix in PROGRAMS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [pytest.param(one, id=one.name, marks=needs(PROGRAMS[one.suffix])) for one in SCRIPTS]
)
def test_sdk(served: Served, script: Path) -> None:
    with served.scheduler.follow(obey):
        run(PROGRAMS[script.suffix], script, served.url, env=OFFLINE, timeout=120)
