"""`python -m tests.chaos faults|partitions|soak`: runs of the fleet; the last line is one JSON."""

import asyncio
import json
import random
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from optimist_common.errors import run_or_explain
from optimist_common.settings import load_settings
from tests.chaos.partitions import PartitionsSettings, run_partitions
from tests.chaos.run import FaultsSettings, RunSettings, run
from tests.chaos.soak import SoakSettings, soak

Run = Callable[[Any, Path], Coroutine[Any, Any, dict[str, Any]]]
_MODES: dict[str, tuple[type[RunSettings], Run]] = {
    "faults": (FaultsSettings, run),
    "partitions": (PartitionsSettings, run_partitions),
    "soak": (SoakSettings, soak),
}


def _run(mode: str, arguments: list[str]) -> dict[str, Any]:
    kind, work = _MODES[mode]
    settings = load_settings(kind, arguments)
    seed = settings.seed or random.SystemRandom().randrange(1, 2**31)
    print(f"seed {seed}", file=sys.stderr)  # noqa: T201
    settings = settings.model_copy(update={"seed": seed})
    with nullcontext(settings.logs) if settings.logs else TemporaryDirectory() as name:
        Path(name).mkdir(parents=True, exist_ok=True)
        return asyncio.run(work(settings, Path(name)))


def main(arguments: list[str]) -> int:
    """Runs a mode and prints its report; returns 0 if all was right, 1 if not, 2 if misused."""
    mode, *rest = arguments or ["faults"]
    if mode not in _MODES:
        print("usage: python -m tests.chaos MODE [OPTIONS]", file=sys.stderr)  # noqa: T201
        return 2
    report: dict[str, Any] = {}
    code = run_or_explain(f"chaos {mode}", lambda: report.update(_run(mode, rest)))
    if code:
        return code
    print(json.dumps(report))  # noqa: T201
    return 0 if report["all_right"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
