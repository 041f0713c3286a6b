"""What the worker counts, for Prometheus."""

from prometheus_client import Counter, Histogram

from optimist_worker.core.plan import StepResult

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
ROWS = Counter("optimist_worker_rows", "Rows run")
ROW_ERRORS = Counter("optimist_worker_row_errors", "Rows that failed")
EMITTED_TOKENS = Counter("optimist_worker_emitted_tokens", "Tokens emitted")
DRAFTED_TOKENS = Counter("optimist_worker_drafted_tokens", "Drafts verified")
ACCEPTED_TOKENS = Counter("optimist_worker_accepted_tokens", "Drafts accepted")


def observe_step(result: StepResult, seconds: float) -> None:
    """Counts one step."""
    STEP_SECONDS.observe(seconds)
    STEP_TOKENS.observe(result.num_tokens)
    ROWS.inc(len(result.rows))
    ROW_ERRORS.inc(sum(row.error is not None for row in result.rows))
    EMITTED_TOKENS.inc(sum(len(row.token_ids) for row in result.rows))
    DRAFTED_TOKENS.inc(sum(row.num_drafted_tokens for row in result.rows))
    ACCEPTED_TOKENS.inc(sum(row.num_accepted_tokens for row in result.rows))
