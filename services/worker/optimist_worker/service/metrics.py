"""What the worker counts, for Prometheus."""

from prometheus_client import Counter, Histogram

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


STEP_SECONDS = Histogram(
    "optimist_worker_step_seconds",
    "Time from plan to result",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
STEP_TOKENS = Histogram(
    "optimist_worker_step_tokens",
    "Tokens fed per forward pass, drafts included",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
)
REPEATS = Counter("optimist_worker_repeats", "Plans run again because no newer one had arrived")
IDLE_SECONDS = Counter("optimist_worker_idle_seconds", "Time between steps with nothing to run")
ROWS = Counter("optimist_worker_rows", "Rows of all runs")
ROW_ERRORS = Counter("optimist_worker_row_errors", "Rows that failed")
EMITTED_TOKENS = Counter("optimist_worker_emitted_tokens", "Tokens emitted")


def observe_step(result: StepResult, step_seconds: float, idle_seconds: float) -> None:
    """Counts one run of a plan."""
    STEP_SECONDS.observe(step_seconds)
    if result.num_tokens:
        STEP_TOKENS.observe(result.num_tokens)
    REPEATS.inc(result.repeat > 0)
    IDLE_SECONDS.inc(idle_seconds)
    ROWS.inc(len(result.slots))
    ROW_ERRORS.inc(len(result.errors))
    EMITTED_TOKENS.inc(len(result.token_ids))
    observe_drafts(result, step_seconds)
