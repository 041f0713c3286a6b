"""What services hold: memory, descriptors, threads, tasks, requests and blocks."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from tests.chaos.services.fleet import Fleet
from tests.stack import Process, read_totals

SETTLE_SECONDS = 40.0
_POLL_SECONDS = 1.0
_MIB = 1 << 20
# What may be there more than before. Connections are opened anew by whoever lost them, and gRPC's
# threads come and go; memory that was once needed is kept by its allocator. Requests and blocks
# have no such excuse.
_TOLERANCE = {"descriptors": 8, "threads": 8, "event_loop_tasks": 4}
_MEMORY_FACTOR, _MEMORY_MIB = 1.25, 32.0
_MUST_BE_EQUAL = (
    *("requests_in_flight", "requests_running", "requests_waiting"),
    "kv_cache_free_blocks",
)
_METRICS = (*_MUST_BE_EQUAL, "event_loop_tasks", "requests_in_memory")
"""Of the services that have them, without the names of these."""

Levels = dict[str, dict[str, float]]
"""Figures by member and name."""


async def read_levels(fleet: Fleet) -> Levels:
    """Reads all figures of all members."""
    members = fleet.members.values()
    figures = await asyncio.gather(*(asyncio.to_thread(_read, member) for member in members))
    return {member.name: one for member, one in zip(members, figures, strict=True)}


async def settle(fleet: Fleet, before: Levels) -> dict[str, Any]:
    """Waits until all figures are back, or for as long as that may take; reports them."""
    deadline = time.monotonic() + SETTLE_SECONDS
    levels = await read_levels(fleet)
    while excesses(before, levels) and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
        levels = await read_levels(fleet)
    side_by_side = {
        member: {name: [before[member][name], value] for name, value in figures.items()}
        for member, figures in levels.items()
    }
    return {"levels": side_by_side, "not_back": excesses(before, levels)}


def excesses(before: Levels, after: Levels) -> list[str]:
    """Names each figure that is not back where it was."""
    found = []
    for member, figures in after.items():
        for name, value in figures.items():
            was = before[member][name]
            if name in _MUST_BE_EQUAL:
                is_back = value == was
            elif name == "memory_mib":
                is_back = value <= _MEMORY_FACTOR * was + _MEMORY_MIB
            else:
                is_back = value <= was + _TOLERANCE.get(name, float("inf"))
            if not is_back:
                found.append(f"{member}: {name} {was:g}, and now {value:g}")
    return found


def _read(member: Process) -> dict[str, float]:
    levels = {
        "memory_mib": round(read_resident_bytes(member.pid) / _MIB, 1),
        "descriptors": count_descriptors(member.pid),
        "threads": sum(1 for _ in Path(f"/proc/{member.pid}/task").iterdir()),
    }
    if member.metrics_url:
        metrics, prefix = read_totals(member.metrics_url), f"optimist_{member.role}_"
        levels |= {name: metrics[prefix + name] for name in _METRICS if prefix + name in metrics}
    return levels


def read_resident_bytes(pid: int) -> int:
    """Returns the memory of a process that is not swapped out."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def count_descriptors(pid: int) -> int:
    """Returns how many descriptors a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
