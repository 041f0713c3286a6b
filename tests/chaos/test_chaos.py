"""A short part of `make chaos`, with a schedule that has a bit of everything."""

from pathlib import Path

import pytest

from tests.chaos.run import FaultsSettings, run
from tests.chaos.services.fleet import Shape

# Kills Redis, the proposer, a worker and a scheduler, restarts the worker, resets connections of
# the gateway and of the proposer, and holds one way between gateway and scheduler.
SETTINGS = FaultsSettings(
    seed=35009, seconds=12.0, pause_seconds=1.3, warm_seconds=1.0, cases=10, clients=4
)
SHAPE = Shape(num_gateways=1, num_workers=(1, 1), num_proposers=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_answers_are_the_same_whatever_fails(tmp_path: Path) -> None:
    report = await run(SETTINGS, tmp_path, SHAPE)
    assert report["faults"] >= 8
    assert report["lost_shown"] == []
    assert report["wrong_shown"] == []
    assert report["not_back"] == []
    assert report["duplicates"] == 0
    assert report["answers_equal"] == report["answered"] > 0
    assert report["failed_as_they_must"] > 0
    assert any(kind.endswith(" grpc") for kind in report["by_kind"])
    assert report["all_right"]
