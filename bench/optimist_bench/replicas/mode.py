"""What is done to a fleet while it works."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from optimist_bench.replicas.fleet import Fleet

_CALM_SECONDS = 2.0
_AWAY_SECONDS = 8.0

Disturbance = Callable[[Fleet], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to use replicas, and what happens to them meanwhile."""

    num_replicas: int
    stays: bool
    """Whether each request stays at one replica."""
    disturb: Disturbance | None = None


async def _kill_in_turn(fleet: Fleet) -> None:
    for replica in fleet.replicas:
        await asyncio.sleep(_CALM_SECONDS)
        await asyncio.to_thread(replica.kill)
        replica.start()
        await replica.wait()
    await asyncio.sleep(_CALM_SECONDS)


async def _empty_redis(fleet: Fleet) -> None:
    for _ in range(3):
        await asyncio.sleep(_CALM_SECONDS)
        await asyncio.to_thread(fleet.redis.kill)
        await asyncio.to_thread(fleet.redis.start)
    await asyncio.sleep(_CALM_SECONDS)


async def _stop_redis(fleet: Fleet) -> None:
    await asyncio.sleep(_CALM_SECONDS)
    fleet.redis.freeze()
    await asyncio.sleep(_AWAY_SECONDS)
    fleet.redis.thaw()
    await asyncio.sleep(_CALM_SECONDS)


async def _cut_off_redis(fleet: Fleet) -> None:
    await asyncio.sleep(_CALM_SECONDS)
    fleet.proxy.cut()
    await asyncio.sleep(_AWAY_SECONDS)
    fleet.proxy.mend()
    await asyncio.sleep(_CALM_SECONDS)


MODES: dict[str, Mode] = {
    "one": Mode(1, True),
    "affinity": Mode(3, True),
    "round_robin": Mode(3, False),
    "killed": Mode(3, False, _kill_in_turn),
    "killed_affinity": Mode(3, True, _kill_in_turn),
    "redis_emptied": Mode(3, False, _empty_redis),
    "redis_emptied_affinity": Mode(3, True, _empty_redis),
    "redis_stopped": Mode(3, False, _stop_redis),
    "redis_stopped_affinity": Mode(3, True, _stop_redis),
    "partition": Mode(3, False, _cut_off_redis),
    "partition_affinity": Mode(3, True, _cut_off_redis),
}
"""`one` is what the others are compared to; without `affinity` in its name, a mode sends each
step's observations to the replicas in turn."""
