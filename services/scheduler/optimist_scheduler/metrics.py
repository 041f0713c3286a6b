"""What the scheduler counts, for Prometheus."""

from prometheus_client import Counter, Gauge

RUNNING = Gauge("optimist_scheduler_running", "Requests with a slot")
WAITING = Gauge("optimist_scheduler_waiting", "Requests without a slot")
FREE_BLOCKS = Gauge("optimist_scheduler_free_blocks", "KV blocks that no request owns")
STEPS = Counter("optimist_scheduler_steps", "Plans that the worker has run")
TOKENS = Counter("optimist_scheduler_tokens", "Tokens delivered")
DRAFTED = Counter("optimist_scheduler_drafted_tokens", "Drafts that were verified")
ACCEPTED = Counter("optimist_scheduler_accepted_tokens", "Drafts that were accepted")
PREEMPTIONS = Counter("optimist_scheduler_preemptions", "Requests that lost their blocks")
FINISHED = Counter("optimist_scheduler_finished", "Requests that ended", ["reason"])
WORKER_LOSSES = Counter("optimist_scheduler_worker_losses", "Times the worker's stream broke")
PROPOSER_WAITS = Counter("optimist_scheduler_proposer_waits", "Waits for a proposer's answer")
PROPOSER_LATE = Counter("optimist_scheduler_proposer_late", "Waits that ended without it")
