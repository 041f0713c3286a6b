"""The figures of all workers together, as a message."""

from collections import Counter
from collections.abc import Iterable

from optimist.scheduler.v1 import scheduler_pb2
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.observing import draft_metrics
from optimist_scheduler.proposers.window_waits import WindowWaits

_TOTALS = (
    "num_plans",
    "num_preschedule_hits",
    "num_preschedule_repairs",
    "num_prescheduled_rows",
    "num_preemptions",
    "num_prefix_queries",
    "num_prefix_hits",
)
"""What stands in the message by the same name."""
_REPAIRED = ("num_dropped_rows", "num_recomputed_rows", "num_added_rows")


def stats_message(
    schedulers: Iterable[Scheduler], waits: WindowWaits, num_workers: int, num_moved: int
) -> scheduler_pb2.Stats:
    """Writes the figures; changes nothing.

    Args:
        schedulers: Of all workers.
        waits: Of all steps for proposers.
        num_workers: Workers that are connected.
        num_moved: Requests that went on at another worker, or at one that came back.
    """
    drafts = draft_metrics.DRAFTS.totals()
    totals: Counter[str] = Counter()
    is_paused = False
    for scheduler in schedulers:
        is_paused = is_paused or scheduler.is_paused
        totals["num_running"] += scheduler.num_running
        totals["num_waiting"] += scheduler.num_waiting
        totals["num_free_blocks"] += scheduler.num_free_blocks
        totals["num_blocks"] += scheduler.config.num_blocks
        totals["num_plans_in_flight"] += scheduler.num_plans_in_flight
        stats = scheduler.stats
        for name in _TOTALS:
            totals[name] += getattr(stats, name)
        totals["num_preschedule_discards"] += stats.preschedule_discards.total()
        totals["num_repaired_rows"] += sum(getattr(stats, name) for name in _REPAIRED)
    return scheduler_pb2.Stats(
        is_paused=is_paused,
        num_window_waits=waits.num_waits,
        num_idle_window_waits=waits.num_idle,
        num_late_window_waits=waits.num_late,
        window_wait_us=round(waits.seconds * 1e6),
        num_drafts=drafts.num_rows,
        num_drafted_tokens=drafts.num_drafted,
        num_accepted_tokens=drafts.num_accepted,
        num_accepted_at_positions=drafts.num_accepted_at,
        num_workers=num_workers,
        num_moved_requests=num_moved,
        **totals,
    )
