"""What drafts were worth and what they are expected to be, by where they came from."""

import numpy as np
from prometheus_client import Counter, Gauge

from optimist_common.observing.metrics import DraftMetrics
from optimist_scheduler.core.outlook import Outlook
from optimist_scheduler.core.requests.plan import StepResult

DRAFTS = DraftMetrics("optimist_scheduler", "step")
DRAFT_SECONDS = Counter("optimist_scheduler_draft_seconds", "Time that the drafter took")
VERIFY_SECONDS = Counter("optimist_scheduler_verify_seconds", "Time of passes without the drafter")
SPEEDUP = Gauge(
    "optimist_scheduler_effective_speedup",
    "Expected tokens per time with drafts over those without, from rates, widths and costs",
    ["source"],
)
DRAFT_LATENCY = Gauge(
    "optimist_scheduler_draft_latency_seconds",
    "Expected time of the drafter in a pass in which all rows draft",
    ["source"],
)
VERIFY_LATENCY = Gauge(
    "optimist_scheduler_verify_latency_seconds", "Expected time of that pass itself", ["source"]
)
OVERHEAD_RATIO = Gauge(
    "optimist_scheduler_overhead_ratio",
    "Expected time of the drafter relative to that of the pass",
    ["source"],
)


def observe_drafts(result: StepResult) -> None:
    """Counts the drafts of a run of a plan."""
    if not np.count_nonzero(result.draft_sources):
        return
    DRAFTS.observe(
        result.draft_sources,
        result.num_drafted_tokens,
        result.num_accepted_tokens,
        result.num_emitted_tokens,
    )


def count_times(draft_ns: int, verify_ns: int) -> None:
    """Counts what the drafter has taken, and passes without it."""
    DRAFT_SECONDS.inc(draft_ns / 1e9)
    VERIFY_SECONDS.inc(verify_ns / 1e9)


def show(outlook: Outlook) -> None:
    """Shows what a source is expected to bring."""
    label = outlook.source.label
    SPEEDUP.labels(label).set(outlook.speedup)
    DRAFT_LATENCY.labels(label).set(outlook.draft_ns / 1e9)
    VERIFY_LATENCY.labels(label).set(outlook.verify_ns / 1e9)
    OVERHEAD_RATIO.labels(label).set(outlook.overhead_ratio)
