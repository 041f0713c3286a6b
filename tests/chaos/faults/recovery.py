"""How long requests stood still after a fault began."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from tests.chaos.faults.injector import Injected
from tests.chaos.load.client import Outcome


def first_token_seconds(fault: Injected, outcomes: Iterable[Outcome]) -> float | None:
    """Returns how long after the beginning of a fault the first token came anywhere."""
    return min(
        (time - fault.began for one in outcomes for time in one.times if time >= fault.began),
        default=None,
    )


def all_going_seconds(fault: Injected, outcomes: Iterable[Outcome]) -> float | None:
    """Returns how long after its beginning every answer then streamed had gone on; None for none.

    An answer goes on with its next token, or ends. Clients that have not got a token yet count too.
    """
    waits = []
    for one in outcomes:
        if one.case.is_streamed and one.began <= fault.began < one.ended:
            nexts = (time for time in one.times if time >= fault.began)
            waits.append(min(nexts, default=one.ended) - fault.began)
    return max(waits, default=None)


def report_recovery(faults: Sequence[Injected], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Returns p50 and the longest of both times in seconds, by kind and role of fault."""
    groups: dict[str, list[Injected]] = defaultdict(list)
    for one in faults:
        groups[f"{one.fault.kind} {one.fault.role}"].append(one)
    return {
        name: {
            "faults": len(members),
            "first_token_s": _quantiles(first_token_seconds(one, outcomes) for one in members),
            "all_going_s": _quantiles(all_going_seconds(one, outcomes) for one in members),
        }
        for name, members in sorted(groups.items())
    }


def _quantiles(values: Iterable[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return [round(median(known), 3), round(max(known), 3)] if known else None
