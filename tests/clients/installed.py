"""Clients that bring many packages: they are tried by `make clients` alone."""

import os
from pathlib import Path

import pytest

from tests.stack import REPOSITORY

PYTHON = REPOSITORY / ".venv-clients" / "bin"
AIDER = REPOSITORY / ".venv-clients" / "aider" / "bin"
NODE = Path(__file__).parent / "conversations" / "node_modules" / ".bin"
_IS_ASKED = bool(os.environ.get("OPTIMIST_TEST_CLIENTS"))


def needs(command: Path) -> pytest.MarkDecorator:
    """Marks what runs a command of these; it is skipped by name where that is not installed."""
    reason = f"{command.name} is not installed" if _IS_ASKED else "`make clients` tries it"
    return pytest.mark.skipif(not (_IS_ASKED and command.exists()), reason=reason)
