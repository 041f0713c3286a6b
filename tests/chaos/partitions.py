"""Pairs of services that cannot reach each other for a while, and what clients see of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from optimist_common.errors import SetupError
from tests.chaos.command import RunSettings
from tests.chaos.load.case import Case, make_cases
from tests.chaos.load.client import Client, Ending, Outcome
from tests.chaos.load.load import Answers, LoadSettings, ask_each, asking, report_outcomes
from tests.chaos.run import NUM_CASES
from tests.chaos.services.fleet import Fleet, Shape, running_fleet
from tests.chaos.services.levels import read_levels, settle
from tests.chaos.services.namespaces import Namespaces, missing_for_namespaces
from tests.stack import read_totals

RESUME_SECONDS = 4.0
# With two workers at one scheduler there is somewhere to move to.
SHAPE = Shape(
    num_gateways=1,
    num_workers=(2, 1),
    num_proposers=1,
    options={"gateway": ("--resume-seconds", str(RESUME_SECONDS))},
)
_LEAD_SECONDS = 2.0
"""Of load before the cut, and after it is healed."""
_DEADLINE_SECONDS = 90.0
_NO_SCHEDULER = ("scheduler_unavailable", "UNAVAILABLE: ")
"""In the error that no scheduler is reached, of HTTP and of gRPC."""
_COUNTS: tuple[str, ...] = ("requests", "answers_equal", "lost", "duplicates", "deadline_misses")
_COUNTS += ("refused_and_asked_again", "wrong_shown", "lost_shown")


@dataclass(frozen=True)
class Partition:
    """A cut between a service and others, for so long."""

    one: str
    others: tuple[str, ...]
    seconds: float

    @property
    def name(self) -> str:
        """Such as `gateway-1 | scheduler-1`."""
        return f"{self.one} | {', '.join(self.others)}"

    @property
    def leaves_no_scheduler(self) -> bool:
        """Whether requests cannot go on anywhere."""
        return self.one == "gateway-1" and len(self.others) == len(SHAPE.num_workers)


PARTITIONS = (
    Partition("proposer-1", ("redis",), 8.0),
    Partition("scheduler-1", ("proposer-1",), 14.0),
    Partition("scheduler-1", ("worker-1",), 14.0),
    Partition("scheduler-1", ("worker-1", "worker-2"), 14.0),
    Partition("gateway-1", ("scheduler-1",), 14.0),
    Partition("gateway-1", ("scheduler-1", "scheduler-2"), 5.0),
    Partition("gateway-1", ("scheduler-1", "scheduler-2"), 20.0),
)


class PartitionsSettings(RunSettings):
    """Pairs of services that are cut and healed: python -m tests.chaos partitions [OPTIONS]."""

    section: ClassVar[str] = "partitions"


async def run_partitions(settings: PartitionsSettings, directory: Path) -> dict[str, Any]:
    """Runs the services, and makes one partition after the other under load; returns figures."""
    if reason := missing_for_namespaces():
        raise SetupError(reason)
    hosts = Namespaces()
    async with (
        running_fleet(SHAPE, hosts, directory) as fleet,
        Client(fleet.grpc_addresses, _DEADLINE_SECONDS, seed=settings.seed) as client,
    ):
        cases = make_cases(NUM_CASES, settings.seed, is_harsh=True)
        expected = await ask_each(client, cases)
        before = await read_levels(fleet)
        rows = []
        for partition in PARTITIONS:
            counters = await _read_counters(fleet)
            outcomes, cut, healed = await _ask_across(partition, hosts, fleet, client, cases)
            later = await _read_counters(fleet)
            gained = {name: later[name] - count for name, count in counters.items()}
            rows.append(_report(partition, outcomes, expected, cut, healed) | gained)
        not_back = (await settle(fleet, before))["not_back"]
    all_right = all(row["all_right"] for row in rows) and not not_back
    report = {"seed": settings.seed, "partitions": rows}
    return report | {"not_back": not_back, "all_right": all_right}


async def _ask_across(
    partition: Partition, hosts: Namespaces, fleet: Fleet, client: Client, cases: Sequence[Case]
) -> tuple[list[Outcome], float, float]:
    """Cuts and heals while requests run; returns these, and the times of both."""
    loop = asyncio.get_running_loop()
    load = LoadSettings(leaving_share=0.0, mean_think_seconds=0.1)
    async with asking(client, cases, load) as outcomes:
        await asyncio.sleep(_LEAD_SECONDS)
        cut = loop.time()
        hosts.cut(partition.one, partition.others)
        await asyncio.sleep(partition.seconds)
        hosts.heal(partition.one, partition.others)
        healed = loop.time()
        await fleet.until_healthy()
        await asyncio.sleep(_LEAD_SECONDS)
    return outcomes, cut, healed


def _report(
    partition: Partition, outcomes: Sequence[Outcome], expected: Answers, cut: float, healed: float
) -> dict[str, Any]:
    """Returns what clients saw of a partition between two times."""
    counts = report_outcomes(outcomes, expected)
    failures = sorted(
        one.ended - cut
        for one in outcomes
        if one.ending is Ending.LOST and any(each in one.message for each in _NO_SCHEDULER)
    )
    # Of streams that had begun.
    pauses = [
        later - earlier for one in outcomes for earlier, later in pairwise([*one.times, one.ended])
    ]
    durations = [one.ended - one.began for one in outcomes if cut <= one.began < healed]
    may_fail = partition.leaves_no_scheduler and partition.seconds > RESUME_SECONDS
    return {
        "partition": partition.name,
        "seconds": round(healed - cut, 1),
        **{name: counts[name] for name in _COUNTS},
        "longest_pause_s": round(max(pauses, default=0.0), 2),
        "median_answer_s": round(median(durations or [0.0]), 2),
        "unavailable_s": [round(seconds, 1) for seconds in failures],
        "all_right": counts["answers_equal"] == counts["answered"] > 0
        and counts["answered"] + counts["failed_as_they_must"] + counts["lost"]
        == counts["requests"]
        and counts["lost"] == len(failures)
        and (may_fail or not failures),
    }


async def _read_counters(fleet: Fleet) -> dict[str, float]:
    """Returns how many requests have gone on elsewhere so far, at schedulers and at workers."""
    counters = {}
    for name, role in (("resumed", "gateway"), ("moved", "scheduler")):
        metric = f"optimist_{role}_requests_{name}_total"
        urls = [one.metrics_url for one in fleet.named(role)]
        counters[name] = sum([(await asyncio.to_thread(read_totals, url))[metric] for url in urls])
    return counters
