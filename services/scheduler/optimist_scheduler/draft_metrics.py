"""What drafts were worth and what they are expected to be, by where they came from."""

import numpy as np
from prometheus_client import Counter, Gauge, Histogram

from optimist_common.draft_source import DraftSource
from optimist_scheduler.core.arrays import Int32Array
from optimist_scheduler.core.outlook import Outlook
from optimist_scheduler.core.plan import StepResult

NUM_POSITIONS = 16
"""Positions of accepted drafts that are counted one by one."""

DRAFTED = Counter("optimist_scheduler_drafted_tokens", "Drafts that were verified", ["source"])
ACCEPTED = Counter("optimist_scheduler_accepted_tokens", "Drafts that were accepted", ["source"])
ACCEPTED_AT = Counter(
    "optimist_scheduler_accepted_at",
    "Drafts that were accepted, by their position among those of their row and pass",
    ["source", "position"],
)
ACCEPTANCE_RATE = Histogram(
    "optimist_scheduler_acceptance_rate",
    "Accepted share of the drafts of a pass",
    ["source"],
    buckets=(0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1),
)
TOKENS_PER_STEP = Histogram(
    "optimist_scheduler_tokens_per_step",
    "New tokens per row that drafts, mean of a pass, by where its drafts came from",
    ["source"],
    buckets=(1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 12, 16, 32, 64),
)
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


class SourceMetrics:
    """The series of one source."""

    def __init__(self, source: DraftSource) -> None:
        label = source.label
        self._drafted, self._accepted = DRAFTED.labels(label), ACCEPTED.labels(label)
        names = [*(str(number) for number in range(1, NUM_POSITIONS + 1)), "more"]
        self._accepted_at = [ACCEPTED_AT.labels(label, name) for name in names]
        self._rate, self._tokens = ACCEPTANCE_RATE.labels(label), TOKENS_PER_STEP.labels(label)

    def observe(self, drafted: Int32Array, accepted: Int32Array, emitted: Int32Array) -> None:
        """Counts the rows of a pass whose drafts came from the source [num_rows]."""
        num_drafted, num_accepted = int(drafted.sum()), int(accepted.sum())
        self._drafted.inc(num_drafted)
        self._accepted.inc(num_accepted)
        self._rate.observe(num_accepted / num_drafted)
        self._tokens.observe(emitted.mean())
        # A row that has accepted n drafts has accepted one at each position up to n.
        ends = np.bincount(accepted, minlength=NUM_POSITIONS + 2)
        reached = ends[::-1].cumsum()[::-1][1:].tolist()
        counts = [*reached[:NUM_POSITIONS], sum(reached[NUM_POSITIONS:])]
        for counter, count in zip(self._accepted_at, counts, strict=True):
            if count:
                counter.inc(count)


_METRICS: dict[DraftSource, SourceMetrics] = {}


def observe_drafts(result: StepResult) -> None:
    """Counts the drafts of a run of a plan."""
    DRAFT_SECONDS.inc(result.draft_ns / 1e9)
    VERIFY_SECONDS.inc(max(result.step_ns - result.draft_ns, 0) / 1e9)
    sources = result.draft_sources
    for number in np.flatnonzero(np.bincount(sources)).tolist():
        if number == DraftSource.TARGET:
            continue
        source, rows = DraftSource(number), sources == number
        if source not in _METRICS:
            _METRICS[source] = SourceMetrics(source)
        _METRICS[source].observe(
            result.num_drafted_tokens[rows],
            result.num_accepted_tokens[rows],
            result.num_emitted_tokens[rows],
        )


def show(outlook: Outlook) -> None:
    """Shows what a source is expected to bring."""
    label = outlook.source.label
    SPEEDUP.labels(label).set(outlook.speedup)
    DRAFT_LATENCY.labels(label).set(outlook.draft_ns / 1e9)
    VERIFY_LATENCY.labels(label).set(outlook.verify_ns / 1e9)
    OVERHEAD_RATIO.labels(label).set(outlook.overhead_ratio)
