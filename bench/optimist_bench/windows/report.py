"""What came of all requests, and the report on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from optimist.scheduler.v1 import scheduler_pb2
from optimist_bench.harness.command import format_table
from optimist_bench.windows.settings import WindowsSettings


@dataclass(frozen=True, slots=True)
class Costs:
    """What services have taken."""

    num_windows: int = 0
    proposer_seconds: float = 0.0
    """Processor time of all proposers."""
    scheduler_seconds: float = 0.0
    """Processor time of the scheduler."""


@dataclass(slots=True)
class Progress:
    """What has come out so far."""

    num_tokens: int = 0
    num_rows: int = 0
    """Passes of single requests that brought tokens."""
    seconds: float = 0.0
    stats: scheduler_pb2.Stats = field(default_factory=scheduler_pb2.Stats)
    """The scheduler's."""
    costs: Costs = Costs()

    def report(self) -> dict[str, Any]:
        """Returns what speed, waits and costs are."""
        stats, costs = self.stats, self.costs
        steps, waits = max(stats.num_plans, 1), max(stats.num_window_waits, 1)
        return {
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.num_tokens / max(self.seconds, 1e-9), 1),
            "tokens_per_pass": round(self.num_tokens / max(self.num_rows, 1), 4),
            "steps": stats.num_plans,
            "steps_waited_share": round(stats.num_window_waits / steps, 4),
            "steps_idle_share": round(stats.num_idle_window_waits / steps, 4),
            "waits_in_vain_share": round(stats.num_late_window_waits / waits, 4),
            "windows": costs.num_windows,
            "proposer_us_per_window": round(
                1e6 * costs.proposer_seconds / max(costs.num_windows, 1), 2
            ),
            "scheduler_us_per_row": round(1e6 * costs.scheduler_seconds / max(self.num_rows, 1), 2),
        }


@dataclass(slots=True)
class Totals:
    """What came of all requests."""

    all_right: bool = True
    num_tokens: int = 0
    num_passes: int = 0
    num_accepted: int = 0
    num_rejected: int = 0
    progress: Progress = field(default_factory=Progress)
    """At the end."""
    full: Progress = field(default_factory=Progress)
    """The same when the first request ended that no other one followed."""

    def take(
        self, text: Sequence[int], truth: Sequence[int], finished: scheduler_pb2.Finished
    ) -> None:
        """Takes a request that ended: what came out, what was to come out, and its account."""
        self.all_right &= list(text) == list(truth)
        self.num_tokens += len(text)
        self.num_passes += finished.num_passes
        self.num_accepted += finished.accepted_prediction_tokens
        self.num_rejected += finished.rejected_prediction_tokens


def make_report(
    settings: WindowsSettings, totals: Totals, wait_p50_ms: float, wait_p99_ms: float
) -> dict[str, Any]:
    """Returns the report; quantiles of waits are in milliseconds."""
    seconds, stats = totals.progress.seconds, totals.progress.stats
    return {
        "algorithm": settings.algorithm,
        "concurrency": settings.concurrency,
        "requests": settings.requests,
        "replicas": settings.replicas,
        "cores": settings.cores,
        "pass_ms": settings.pass_ms,
        "token_us": settings.token_us,
        "depth": settings.depth,
        "wait": settings.wait,
        "all_right": totals.all_right,
        "output_tokens": totals.num_tokens,
        "passes": totals.num_passes,
        **totals.progress.report(),
        "full": totals.full.report(),
        "accepted_prediction_tokens": totals.num_accepted,
        "rejected_prediction_tokens": totals.num_rejected,
        "steps_waited": stats.num_window_waits,
        "wait_ms": {
            "p50": round(wait_p50_ms, 3),
            "p99": round(wait_p99_ms, 3),
            "mean": round(stats.window_wait_us / 1000 / max(stats.num_window_waits, 1), 3),
        },
        "wait_time_share": round(stats.window_wait_us / 1e6 / seconds, 5),
    }


def describe(report: dict[str, Any]) -> str:
    """Returns the report as a table."""
    names = (
        *("tokens_per_second", "tokens_per_pass", "steps", "steps_waited_share"),
        *("steps_idle_share", "waits_in_vain_share", "proposer_us_per_window"),
    )
    waits = report["wait_ms"]
    return format_table(
        (*names, "p50 ms", "p99 ms", "right"),
        [(*(report[name] for name in names), waits["p50"], waits["p99"], report["all_right"])],
    )
