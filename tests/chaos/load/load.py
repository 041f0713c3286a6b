"""Many clients that ask all kinds of requests, and what came of them."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from tests.chaos.load.answer import (
    SAME_ENGINE,
    Answer,
    Promise,
    difference,
    fault_of_sample,
    has_duplicates,
    is_beginning,
)
from tests.chaos.load.case import Case
from tests.chaos.load.client import Client, Ending, Outcome

Answers = dict[str, Answer]
"""By the names of their cases."""
_LEAVE_SECONDS = (0.05, 2.0)
MAX_SHOWN = 10


@dataclass(frozen=True)
class LoadSettings:
    """How much is asked."""

    num_clients: int = 6
    """At once; each asks again when it has its answer."""
    mean_think_seconds: float = 0.2
    """Between an answer and a client's next request."""
    leaving_share: float = 0.08
    """Of requests whose clients go away."""
    seed: int = 0


async def ask_each(client: Client, cases: Sequence[Case]) -> Answers:
    """Asks each once without drafts, some at a time, with nothing in the way.

    Returns:
        By names of cases, what they are to be answered with any drafts.

    Raises:
        RuntimeError: One was not answered, or not with the error that is right.
    """
    places = asyncio.Semaphore(4)

    async def ask(case: Case) -> Answer:
        async with places:
            outcome = await client.ask(case.undrafted)
        is_answered = outcome.ending is Ending.ANSWERED and outcome.answer.is_complete
        if not (outcome.ending is Ending.FAILED if case.failure else is_answered):
            raise RuntimeError(f"{case.name} {outcome.ending}: {outcome.message}")
        return outcome.answer

    answers = await asyncio.gather(*map(ask, cases))
    return {case.name: answer for case, answer in zip(cases, answers, strict=True)}


@asynccontextmanager
async def asking(
    client: Client, cases: Sequence[Case], settings: LoadSettings
) -> AsyncIterator[list[Outcome]]:
    """Begins requests while its block runs; the list has all of them when it is left.

    Clients share the cases in turn, so that no kind is left out by chance.
    """
    outcomes: list[Outcome] = []
    upcoming = cycle(cases)
    over = asyncio.Event()

    async def keep_asking(number: int) -> None:
        rng = random.Random(f"load {settings.seed} {number}")
        while not over.is_set():
            leaves = rng.random() < settings.leaving_share
            leave_seconds = rng.uniform(*_LEAVE_SECONDS) if leaves else None
            outcomes.append(await client.ask(next(upcoming), leave_seconds))
            await asyncio.sleep(rng.expovariate(1 / settings.mean_think_seconds))

    clients = asyncio.gather(*map(keep_asking, range(settings.num_clients)))
    try:
        yield outcomes
    finally:
        over.set()
        await clients


def report_outcomes(
    outcomes: Sequence[Outcome], expected: Answers, promise: Promise = SAME_ENGINE
) -> dict[str, Any]:
    """Counts how requests ended, by the right answers, and shows the first that ended otherwise."""
    endings = Counter(one.ending for one in outcomes)
    equal = duplicates = 0
    wrong: list[str] = []
    for one in outcomes:
        right, differs = expected[one.case.name], ""
        is_free = one.case.is_sampled and not promise.repeats_samples
        duplicates += not is_free and has_duplicates(one.answer, right)
        if one.ending in (Ending.ANSWERED, Ending.FAILED):
            if is_free:
                differs = fault_of_sample(one.answer, right)
            else:
                differs = difference(one.answer, right, promise.tolerance)
            equal += one.ending is Ending.ANSWERED and not differs
        elif one.ending is Ending.LEFT and not is_free and not is_beginning(one.answer, right):
            differs = f"left, and not the beginning: {one.answer}, expected {right}"
        if differs:
            wrong.append(f"{one.case.name}: {differs}")
    lost = [
        f"{one.case.name}: {one.ending} after {one.ended - one.began:.1f} s {one.message}"
        for one in outcomes
        if one.ending in (Ending.LOST, Ending.LATE)
    ]
    return {
        "requests": len(outcomes),
        "answered": endings[Ending.ANSWERED],
        "answers_equal": equal,
        "failed_as_they_must": endings[Ending.FAILED],
        "left": endings[Ending.LEFT],
        "lost": endings[Ending.LOST],
        "duplicates": duplicates,
        "deadline_misses": endings[Ending.LATE],
        "refused_and_asked_again": sum(one.num_refused for one in outcomes),
        "broken_with_their_gateway": sum(one.num_broken for one in outcomes),
        "by_kind": dict(sorted(Counter(one.case.kind for one in outcomes).items())),
        "wrong_shown": [text[:2000] for text in wrong[:MAX_SHOWN]],
        "lost_shown": [text[:2000] for text in lost[:MAX_SHOWN]],
    }


def is_all_right(counts: dict[str, Any]) -> bool:
    """Tells whether every request was answered in time, with the right answer, once."""
    return bool(
        counts["answers_equal"] == counts["answered"] > 0
        and counts["answered"] + counts["failed_as_they_must"] + counts["left"]
        == counts["requests"]
        and not counts["wrong_shown"]
    )
