"""What vLLM says of itself with each pass."""

from dataclasses import dataclass, field
from typing import Any

from optimist.scheduler.v1 import scheduler_pb2


@dataclass
class Figures:
    """Totals since the start, of all of vLLM's engines (data parallel ranks) together."""

    num_blocks: int
    """Of one engine."""
    num_passes: int = 0
    num_preemptions: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    num_drafts: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_accepted_at: list[int] = field(default_factory=list)
    _last: dict[int, Any] = field(default_factory=dict)
    """By engine, what it said last."""

    def take(self, engine_index: int, stats: Any) -> None:
        """Takes vLLM's `SchedulerStats` of a pass."""
        self._last[engine_index] = stats
        self.num_passes += 1
        self.num_prefix_queries += stats.prefix_cache_stats.queries
        self.num_prefix_hits += stats.prefix_cache_stats.hits
        if (drafts := stats.spec_decoding_stats) is None:
            return
        self.num_drafts += drafts.num_drafts
        self.num_drafted += drafts.num_draft_tokens
        self.num_accepted += drafts.num_accepted_tokens
        at = drafts.num_accepted_tokens_per_pos
        self.num_accepted_at += [0] * (len(at) - len(self.num_accepted_at))
        for position, count in enumerate(at):
            self.num_accepted_at[position] += count

    @property
    def num_running(self) -> int:
        """Requests that run."""
        return sum(stats.num_running_reqs for stats in self._last.values())

    def message(
        self, num_requests: int, num_engines: int, *, is_paused: bool
    ) -> scheduler_pb2.Stats:
        """Writes the figures.

        Args:
            num_requests: Requests that have not ended.
            num_engines: Of vLLM.
            is_paused: Whether a pause is in force.
        """
        num_blocks = self.num_blocks * num_engines
        used = sum(stats.kv_cache_usage for stats in self._last.values())
        # vLLM says who runs with each pass; requests that came since wait.
        num_running = min(self.num_running, num_requests)
        return scheduler_pb2.Stats(
            num_running=num_running,
            num_waiting=num_requests - num_running,
            num_free_blocks=num_blocks - round(used * self.num_blocks),
            num_blocks=num_blocks,
            num_plans_in_flight=int(num_running > 0),
            is_paused=is_paused,
            num_plans=self.num_passes,
            num_preemptions=self.num_preemptions,
            num_prefix_queries=self.num_prefix_queries,
            num_prefix_hits=self.num_prefix_hits,
            num_drafts=self.num_drafts,
            num_drafted_tokens=self.num_drafted,
            num_accepted_tokens=self.num_accepted,
            num_accepted_at_positions=self.num_accepted_at,
            num_workers=num_engines,
        )
