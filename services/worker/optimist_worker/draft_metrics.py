"""What drafting brings and costs, for Prometheus, by where the drafts came from."""

import numpy as np
from prometheus_client import Counter, Histogram

from optimist_common.columns import Int32Column
from optimist_common.draft_source import DraftSource
from optimist_worker.core.plan import StepResult

NUM_POSITIONS = 16
"""Positions of accepted drafts that are counted one by one."""
MIXED = "mixed"
"""Label of passes whose rows have drafts of several sources."""

_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)

DRAFTED = Counter("optimist_worker_drafted_tokens", "Drafts verified", ["source"])
ACCEPTED = Counter("optimist_worker_accepted_tokens", "Drafts accepted", ["source"])
ACCEPTED_AT = Counter(
    "optimist_worker_accepted_at",
    "Drafts accepted, by their position among those of their row and pass",
    ["source", "position"],
)
DRAFTED_ROWS = Counter("optimist_worker_drafted_rows", "Rows with drafts", ["source"])
ACCEPTANCE_RATE = Histogram(
    "optimist_worker_acceptance_rate",
    "Accepted share of the drafts of a pass",
    ["source"],
    buckets=(0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1),
)
TOKENS_PER_PASS = Histogram(
    "optimist_worker_tokens_per_pass",
    "New tokens per row with drafts, mean of a pass",
    ["source"],
    buckets=(1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 12, 16, 32, 64),
)
DRAFT_SECONDS = Histogram(
    "optimist_worker_draft_seconds",
    "Time that drafting took in a pass that has drafts",
    ["source"],
    buckets=_SECONDS,
)
VERIFY_SECONDS = Histogram(
    "optimist_worker_verify_seconds",
    "Time of a pass that has drafts, without that of drafting",
    ["source"],
    buckets=_SECONDS,
)


class SourceMetrics:
    """The series of one source."""

    def __init__(self, source: DraftSource) -> None:
        label = source.label
        self._drafted, self._accepted = DRAFTED.labels(label), ACCEPTED.labels(label)
        self._rows = DRAFTED_ROWS.labels(label)
        names = [*(str(number) for number in range(1, NUM_POSITIONS + 1)), "more"]
        self._accepted_at = [ACCEPTED_AT.labels(label, name) for name in names]
        self._rate, self._tokens = ACCEPTANCE_RATE.labels(label), TOKENS_PER_PASS.labels(label)

    def observe(self, drafted: Int32Column, accepted: Int32Column, emitted: Int32Column) -> None:
        """Counts the rows of a pass whose drafts came from the source, `[num_rows]` each."""
        num_drafted, num_accepted = int(drafted.sum()), int(accepted.sum())
        self._rows.inc(len(drafted))
        self._drafted.inc(num_drafted)
        self._accepted.inc(num_accepted)
        self._rate.observe(num_accepted / num_drafted)
        self._tokens.observe(float(emitted.mean()))
        # A row that has accepted n drafts has accepted one at each position up to n.
        ends = np.bincount(accepted, minlength=NUM_POSITIONS + 2)
        reached = ends[::-1].cumsum()[::-1][1:].tolist()
        counts = [*reached[:NUM_POSITIONS], sum(reached[NUM_POSITIONS:])]
        for counter, count in zip(self._accepted_at, counts, strict=True):
            if count:
                counter.inc(count)


_METRICS: dict[DraftSource, SourceMetrics] = {}


def observe_drafts(result: StepResult, step_seconds: float) -> None:
    """Counts the drafts of one run of a plan, which took some seconds with drafting."""
    sources = result.draft_sources
    found = [number for number in np.flatnonzero(np.bincount(sources)).tolist() if number]
    if not found:
        return
    for number in found:
        source, rows = DraftSource(number), sources == number
        if source not in _METRICS:
            _METRICS[source] = SourceMetrics(source)
        _METRICS[source].observe(
            result.num_drafted_tokens[rows],
            result.num_accepted_tokens[rows],
            result.num_emitted_tokens[rows],
        )
    label = DraftSource(found[0]).label if len(found) == 1 else MIXED
    draft_seconds = result.draft_ns / 1e9
    DRAFT_SECONDS.labels(label).observe(draft_seconds)
    VERIFY_SECONDS.labels(label).observe(max(step_seconds - draft_seconds, 0.0))
