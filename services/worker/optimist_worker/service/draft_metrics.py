"""What drafting brings and costs, for Prometheus, by where the drafts came from."""

from prometheus_client import Histogram

from optimist_common.observing.metrics import DraftMetrics
from optimist_worker.core.plan import StepResult

MIXED = "mixed"
"""Label of passes whose rows have drafts of several sources."""

_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)

DRAFTS = DraftMetrics("optimist_worker", "pass")
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


def observe_drafts(result: StepResult, step_seconds: float) -> None:
    """Counts the drafts of one run of a plan, which took some seconds with drafting."""
    found = DRAFTS.observe(
        result.draft_sources,
        result.num_drafted_tokens,
        result.num_accepted_tokens,
        result.num_emitted_tokens,
    )
    if not found:
        return
    label = next(iter(found)).label if len(found) == 1 else MIXED
    draft_seconds = result.draft_ns / 1e9
    DRAFT_SECONDS.labels(label).observe(draft_seconds)
    VERIFY_SECONDS.labels(label).observe(max(step_seconds - draft_seconds, 0.0))
