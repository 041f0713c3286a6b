"""Pairs of services that cannot reach each other for a while, and what clients see of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from optimist_common.errors import SetupError
from tests.chaos.load.answer import Answer
from tests.chaos.load.case import Case, make_cases
from tests.chaos.load.client import Client, Ending, Outcome
from tests.chaos.load.load import LoadSettings, ask_each, keep_asking, report_outcomes
from tests.chaos.run import NUM_CASES, RunSettings
from tests.chaos.services.fleet import Fleet, Shape, running_fleet
from tests.chaos.services.levels import excesses, read_levels, read_totals, settle
from tests.chaos.services.namespaces import Namespaces, missing_for_namespaces

RESUME_SECONDS = 4.0
NOTICE_SECONDS = 10.0
"""A peer that says nothing is taken for lost within this time."""
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
    namespaces = Namespaces()
    async with running_fleet(SHAPE, namespaces, directory) as fleet:
        (gateway,) = fleet.named("gateway")
        url = "http://{}:{}".format(*gateway.address)
        client = Client([url], _DEADLINE_SECONDS, lambda *_: False, settings.seed)
        try:
            cases = make_cases(NUM_CASES, settings.seed)
            expected = await ask_each(client, cases)
            before = await read_levels(fleet)
            rows = [
                await _run_one(one, namespaces, fleet, client, cases, expected)
                for one in PARTITIONS
            ]
            too_much = excesses(before, await settle(fleet, before))
        finally:
            await client.close()
    return {
        "seed": settings.seed,
        "partitions": rows,
        "not_back": too_much,
        "all_right": all(row["all_right"] for row in rows) and not too_much,
    }


async def _run_one(
    partition: Partition,
    namespaces: Namespaces,
    fleet: Fleet,
    client: Client,
    cases: Sequence[Case],
    expected: dict[str, Answer],
) -> dict[str, Any]:
    """Cuts and heals while requests run; returns what clients saw."""
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    counters = await _read_counters(fleet)
    settings = LoadSettings(leaving_share=0.0, mean_think_seconds=0.1)
    load = asyncio.create_task(keep_asking(client, cases, settings, over))
    try:
        await asyncio.sleep(_LEAD_SECONDS)
        cut = loop.time()
        namespaces.cut(partition.one, partition.others)
        await asyncio.sleep(partition.seconds)
        namespaces.heal(partition.one, partition.others)
        healed = loop.time()
        await fleet.until_healthy()
        await asyncio.sleep(_LEAD_SECONDS)
    finally:
        over.set()
        outcomes = await load
    counts = report_outcomes(outcomes, expected)
    later = await _read_counters(fleet)
    failures = [one.ended - cut for one in outcomes if _is_unavailable(one)]
    others_lost = counts["lost"] - len(failures)
    row: dict[str, Any] = {
        "partition": partition.name,
        "seconds": round(healed - cut, 1),
        **{name: counts[name] for name in ("requests", "answers_equal", "lost", "duplicates")},
        "deadline_misses": counts["deadline_misses"],
        "refused_and_asked_again": counts["refused_and_asked_again"],
        "resumed": later["resumed"] - counters["resumed"],
        "moved": later["moved"] - counters["moved"],
        "longest_pause_s": round(_longest_pause(outcomes), 2),
        "median_answer_s": round(_median_seconds(outcomes, cut, healed), 2),
        "unavailable_s": [round(seconds, 1) for seconds in sorted(failures)],
        "wrong_shown": counts["wrong_shown"],
        "lost_shown": counts["lost_shown"],
    }
    may_fail = partition.leaves_no_scheduler and partition.seconds > RESUME_SECONDS
    is_complete = counts["answered"] + counts["lost"] == counts["requests"]
    row["all_right"] = (
        counts["answers_equal"] == counts["answered"] > 0
        and is_complete
        and others_lost == 0
        and (may_fail or not failures)
    )
    return row


def _is_unavailable(outcome: Outcome) -> bool:
    """Tells whether a stream ended with the error that no scheduler is reached."""
    return outcome.ending is Ending.LOST and "scheduler_unavailable" in outcome.message


def _longest_pause(outcomes: Sequence[Outcome]) -> float:
    """Returns the longest time for which a stream that had begun brought nothing."""
    pauses = (
        later - earlier for one in outcomes for earlier, later in pairwise([*one.times, one.ended])
    )
    return max(pauses, default=0.0)


def _median_seconds(outcomes: Sequence[Outcome], begin: float, end: float) -> float:
    """Returns how long answers took that were asked for between two times."""
    return median([one.ended - one.began for one in outcomes if begin <= one.began < end] or [0.0])


async def _read_counters(fleet: Fleet) -> dict[str, float]:
    """Returns how many requests have gone on elsewhere so far, at schedulers and at workers."""
    names = {
        "resumed": ("gateway", "optimist_gateway_resumed_requests_total"),
        "moved": ("scheduler", "optimist_scheduler_moved_requests_total"),
    }
    sums = dict.fromkeys(names, 0.0)
    for key, (role, metric) in names.items():
        for member in fleet.named(role):
            totals = await asyncio.to_thread(read_totals, member.metrics_url)
            sums[key] += totals[metric]
    return sums
