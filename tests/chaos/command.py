"""Runs against real services from a command line; the last line is one JSON object."""

import asyncio
import json
import random
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import Field

from optimist_common.errors import run_or_explain
from optimist_common.settings import ServiceSettings, load_settings


class RunSettings(ServiceSettings):
    """Settings of every run."""

    seed: int = Field(0, ge=0, description="of everything that is drawn; 0 draws it too")
    logs: str = Field("", description="directory for logs; empty for a temporary one")


Run = Callable[[Any, Path], Coroutine[Any, Any, dict[str, Any]]]
"""Runs by settings, with logs in a directory; returns the report, which has `all_right`."""


def run_and_report(name: str, kind: type[RunSettings], run: Run, arguments: list[str]) -> int:
    """Runs and prints the report; returns 0 if all was right, 1 if not, 2 if misused."""
    report: dict[str, Any] = {}
    code = run_or_explain(name, lambda: report.update(_run(kind, run, arguments)))
    if code:
        return code
    print(json.dumps(report))  # noqa: T201
    return 0 if report["all_right"] else 1


def _run(kind: type[RunSettings], run: Run, arguments: list[str]) -> dict[str, Any]:
    settings = load_settings(kind, arguments)
    seed = settings.seed or random.SystemRandom().randrange(1, 2**31)
    print(f"seed {seed}", file=sys.stderr)  # noqa: T201
    settings = settings.model_copy(update={"seed": seed})
    with nullcontext(settings.logs) if settings.logs else TemporaryDirectory() as directory:
        Path(directory).mkdir(parents=True, exist_ok=True)
        return asyncio.run(run(settings, Path(directory)))
