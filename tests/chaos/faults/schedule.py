"""Which fault comes where, when and for how long: a function of a seed and of nothing else."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import cycle

CONNECTION_SIGN = ">"
"""Stands in the name of an edge between who connects and who listens."""


class FaultKind(StrEnum):
    """What is done to a connection between two services, or to a process."""

    DELAY = "delay"
    JITTER = "jitter"
    RESET = "reset"
    HALF_OPEN = "half_open"
    BLACK_HOLE = "black_hole"
    DRIP = "drip"
    REFUSE = "refuse"
    KILL = "kill"
    """Without warning; started again."""
    STOP = "stop"
    """SIGSTOP, later SIGCONT."""
    RESTART = "restart"
    """SIGTERM; started again when it has ended."""

    @property
    def is_of_process(self) -> bool:
        """Whether it is done to a process."""
        return self in (FaultKind.KILL, FaultKind.STOP, FaultKind.RESTART)


_NONE = (0.0, 0.0)
# Shortest and longest, in seconds: past what keepalive notices, and well below it. For a process
# that ends it is the time until it is started again. Then the least and greatest strength: seconds
# for delays, bytes a second for a drip, which way for a half-open connection (below one half:
# requests are held).
_RANGES: dict[FaultKind, tuple[tuple[float, float], tuple[float, float]]] = {
    FaultKind.DELAY: ((2.0, 6.0), (0.005, 0.3)),
    FaultKind.JITTER: ((2.0, 6.0), (0.01, 0.3)),
    FaultKind.RESET: (_NONE, _NONE),
    FaultKind.HALF_OPEN: ((1.0, 15.0), (0.0, 1.0)),
    FaultKind.BLACK_HOLE: ((1.0, 15.0), _NONE),
    FaultKind.DRIP: ((2.0, 6.0), (500.0, 8000.0)),
    FaultKind.REFUSE: ((1.0, 5.0), _NONE),
    FaultKind.KILL: ((0.0, 2.0), _NONE),
    FaultKind.STOP: ((0.5, 12.0), _NONE),
    FaultKind.RESTART: (_NONE, _NONE),
}
MAX_AT_ONCE = 2


@dataclass(frozen=True)
class Fault:
    """One fault."""

    begin: float
    """Seconds from the beginning of the schedule."""
    seconds: float
    """How long it lasts."""
    kind: FaultKind
    place: str
    """A process, or an edge `client>server`."""
    amount: float = 0.0
    """How strong it is: seconds, bytes a second, or which way."""

    @property
    def end(self) -> float:
        """When it is taken back, in seconds from the beginning of the schedule."""
        return self.begin + self.seconds

    @property
    def role(self) -> str:
        """The place without the numbers of its services."""
        services = self.place.split(CONNECTION_SIGN)
        return CONNECTION_SIGN.join(service.rstrip("0123456789-") for service in services)


def make_schedule(
    seed: int,
    seconds: float,
    edges: Sequence[str],
    processes: Sequence[str],
    mean_pause_seconds: float,
) -> list[Fault]:
    """Draws faults in the order of their beginnings; none begins later than `seconds`.

    Every kind is dealt to every role in turn, in an order of the seed, so that a long schedule has
    all of them. At most MAX_AT_ONCE last at once, and one at a place.

    Args:
        seed: Two schedules of one seed, with the same other arguments, are equal.
        seconds: How long faults begin.
        edges: Names of connections.
        processes: Names of processes.
        mean_pause_seconds: Between one beginning and the next.
    """
    rng = random.Random(f"faults {seed}")
    faults: list[Fault] = []
    begin = 0.0
    for kind, places in cycle(_deck(rng, edges, processes)):
        begin += rng.uniform(0.5, 1.5) * mean_pause_seconds
        seconds_range, amount_range = _RANGES[kind]
        lasts, place = rng.uniform(*seconds_range), rng.choice(places)
        fault = Fault(begin, lasts, kind, place, rng.uniform(*amount_range))
        last = [one for one in faults if one.end > begin]
        if len(last) >= MAX_AT_ONCE or any(one.place == place for one in last):
            begin = min(one.end for one in last)
            fault = replace(fault, begin=begin)
            if any(one.place == place and one.end > begin for one in last):
                continue
        if begin > seconds:
            return faults
        faults.append(fault)
    return faults


def _deck(
    rng: random.Random, edges: Sequence[str], processes: Sequence[str]
) -> list[tuple[FaultKind, list[str]]]:
    """Returns every kind with the places of every role, shuffled."""
    deck = []
    for kind in FaultKind:
        by_role: dict[str, list[str]] = {}
        for place in processes if kind.is_of_process else edges:
            by_role.setdefault(Fault(0, 0, kind, place).role, []).append(place)
        deck += [(kind, places) for places in by_role.values()]
    rng.shuffle(deck)
    return deck
