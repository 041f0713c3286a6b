"""The figures that the scheduler answers to GetStats."""

from dataclasses import dataclass

from optimist.scheduler.v1 import scheduler_pb2


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Load, and totals since the scheduler started."""

    num_running: int
    num_waiting: int
    kv_usage: float
    """Share of KV blocks that requests hold, 0 to 1."""
    num_preemptions: int
    num_prefix_queries: int
    num_prefix_hits: int
    num_drafts: int
    """Rows of passes that had drafts."""
    num_drafted_tokens: int
    num_accepted_tokens: int
    num_accepted_at_positions: tuple[int, ...]
    """Drafts accepted as the first, second and so on of their row and pass."""


def read_stats(message: scheduler_pb2.Stats) -> SchedulerStats:
    """Reads the figures."""
    num_blocks = max(message.num_blocks, 1)
    return SchedulerStats(
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        kv_usage=1 - message.num_free_blocks / num_blocks,
        num_preemptions=message.num_preemptions,
        num_prefix_queries=message.num_prefix_queries,
        num_prefix_hits=message.num_prefix_hits,
        num_drafts=message.num_drafts,
        num_drafted_tokens=message.num_drafted_tokens,
        num_accepted_tokens=message.num_accepted_tokens,
        num_accepted_at_positions=tuple(message.num_accepted_at_positions),
    )
