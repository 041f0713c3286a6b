"""What the worker counts, for Prometheus."""

from prometheus_client import Counter, Histogram

from optimist_worker.core.plan import StepResult
from optimist_worker.service.draft_metrics import observe_drafts

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
