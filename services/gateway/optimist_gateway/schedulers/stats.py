"""The figures that the scheduler answers to GetStats."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest

from optimist.scheduler.v1 import scheduler_pb2


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Load, and totals since the scheduler started."""

    num_running: int
    num_waiting: int
    num_blocks: int
    """KV blocks."""
    num_free_blocks: int
    """Those that no request holds."""
    num_preemptions: int
    num_prefix_queries: int
    num_prefix_hits: int
    num_drafts: int
    """Rows of passes that had drafts."""
    num_drafted_tokens: int
    num_accepted_tokens: int
    num_workers: int
    """Workers that are connected."""
    num_accepted_at_positions: tuple[int, ...]
    """Drafts accepted as the first, second and so on of their row and pass."""

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks that requests hold, 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks if self.num_blocks else 0.0


_SUMMED = tuple(
    field.name for field in fields(SchedulerStats) if field.name != "num_accepted_at_positions"
)


def add_stats(several: Sequence[SchedulerStats]) -> SchedulerStats | None:
    """Returns the sum; None of nothing."""
    if not several:
        return None
    columns = zip_longest(*(one.num_accepted_at_positions for one in several), fillvalue=0)
    return SchedulerStats(
        **{name: sum(getattr(one, name) for one in several) for name in _SUMMED},
        num_accepted_at_positions=tuple(sum(column) for column in columns),
    )


def read_stats(message: scheduler_pb2.Stats) -> SchedulerStats:
    """Reads the figures."""
    return SchedulerStats(
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        num_blocks=message.num_blocks,
        num_free_blocks=message.num_free_blocks,
        num_preemptions=message.num_preemptions,
        num_prefix_queries=message.num_prefix_queries,
        num_prefix_hits=message.num_prefix_hits,
        num_drafts=message.num_drafts,
        num_drafted_tokens=message.num_drafted_tokens,
        num_accepted_tokens=message.num_accepted_tokens,
        num_workers=message.num_workers,
        num_accepted_at_positions=tuple(message.num_accepted_at_positions),
    )
