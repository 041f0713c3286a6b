"""`python -m tests.chaos faults|partitions|soak`: runs of the fleet; the last line is one JSON."""

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from optimist_common.errors import SetupError, run_or_explain
from optimist_common.settings import CommaSeparated, ServiceSettings, load_settings
from tests.chaos.load.load import LoadSettings
from tests.chaos.partitions import PARTITIONS, run_partitions
from tests.chaos.run import RunSettings, run
from tests.chaos.services.fleet import Shape
from tests.chaos.services.namespaces import missing_for_namespaces
from tests.chaos.soak import SoakSettings, soak


class RunningSettings(ServiceSettings):
    """Settings of every run."""

    seed: int = Field(0, ge=0, description="of everything that is drawn; 0 draws it too")
    logs: str = Field("", description="directory for logs; empty for a temporary one")


class PartitionsSettings(RunningSettings):
    """Pairs of services that are cut and healed: python -m tests.chaos partitions [OPTIONS]."""

    section: ClassVar[str] = "partitions"

    cases: int = Field(48, ge=1, description="number of different requests")


class FleetSettings(RunningSettings):
    """How many of each service."""

    gateways: int = Field(2, ge=1, le=8, description="number of gateways")
    workers: CommaSeparated = Field(
        ["2", "1"], description="number of workers of each scheduler, with commas"
    )
    proposers: int = Field(2, ge=1, le=8, description="number of proposers")
    dtype: str = Field("float64", description="number format of the workers")

    def shape(self) -> Shape:
        """Returns how many of each."""
        workers = tuple(int(number) for number in self.workers)
        return Shape(self.gateways, workers, self.proposers, self.dtype)


class FaultsSettings(FleetSettings):
    """Mixed load while faults are injected: python -m tests.chaos faults [OPTIONS]."""

    section: ClassVar[str] = "chaos"

    seconds: float = Field(600.0, gt=0, description="how long faults begin")
    pause_seconds: float = Field(6.0, gt=0, description="mean time between two faults")
    clients: int = Field(6, ge=1, le=256, description="requests at once")
    deadline_seconds: float = Field(120.0, gt=0, description="of each request")


class LongSettings(FleetSettings):
    """Half of what the fleet can do, for long: python -m tests.chaos soak [OPTIONS]."""

    section: ClassVar[str] = "soak"

    seconds: float = Field(3600.0, gt=0, description="how long the load goes on")
    window_seconds: float = Field(
        300.0, gt=0, description="figures are reported for each such time"
    )
    capacity_seconds: float = Field(60.0, gt=0, description="how long capacity is measured before")
    share: float = Field(0.5, gt=0, le=1, description="of the capacity that is asked for")


def _run_faults(arguments: list[str]) -> dict[str, Any]:
    settings = load_settings(FaultsSettings, arguments)
    seed = _seed(settings)
    task = RunSettings(
        seconds=settings.seconds,
        seed=seed,
        shape=settings.shape(),
        mean_pause_seconds=settings.pause_seconds,
        deadline_seconds=settings.deadline_seconds,
        load=LoadSettings(num_clients=settings.clients, seed=seed),
    )
    return _in_directory(settings, lambda directory: asyncio.run(run(task, directory)))


def _run_partitions(arguments: list[str]) -> dict[str, Any]:
    settings = load_settings(PartitionsSettings, arguments)
    if reason := missing_for_namespaces():
        raise SetupError(reason)
    seed = _seed(settings)
    return _in_directory(
        settings,
        lambda directory: asyncio.run(run_partitions(PARTITIONS, settings.cases, seed, directory)),
    )


def _run_soak(arguments: list[str]) -> dict[str, Any]:
    settings = load_settings(LongSettings, arguments)
    task = SoakSettings(
        seconds=settings.seconds,
        seed=_seed(settings),
        shape=settings.shape(),
        window_seconds=settings.window_seconds,
        capacity_seconds=settings.capacity_seconds,
        share=settings.share,
    )
    return _in_directory(settings, lambda directory: asyncio.run(soak(task, directory)))


def _seed(settings: RunningSettings) -> int:
    seed = settings.seed or random.SystemRandom().randrange(1, 2**31)
    print(f"seed {seed}", file=sys.stderr)  # noqa: T201
    return seed


def _in_directory(
    settings: RunningSettings, work: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    if not settings.logs:
        with tempfile.TemporaryDirectory() as name:
            return work(Path(name))
    directory = Path(settings.logs)
    directory.mkdir(parents=True, exist_ok=True)
    return work(directory)


_MODES = {"faults": _run_faults, "partitions": _run_partitions, "soak": _run_soak}


def main(arguments: list[str]) -> int:
    """Runs a mode and prints its report; returns 0 if all was right, 1 if not, 2 if misused."""
    mode, *rest = arguments or ["faults"]
    if mode not in _MODES:
        print("usage: python -m tests.chaos MODE [OPTIONS]", file=sys.stderr)  # noqa: T201
        return 2
    report: dict[str, Any] = {}
    code = run_or_explain(f"chaos {mode}", lambda: report.update(_MODES[mode](rest)))
    if code:
        return code
    print(json.dumps(report))  # noqa: T201
    return 0 if report["all_right"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
