"""What the scheduler counts, for Prometheus."""

import numpy as np
from prometheus_client import Counter, Gauge, Histogram

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes
from optimist_common.drafts import FORM
from optimist_common.observing.metrics import DraftMetrics
from optimist_scheduler.core.base.values import StepOutputs
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.scheduler import Scheduler

CONNECTED = Gauge(
    "optimist_scheduler_worker_connected", "Whether a worker takes plans: 1 or 0", ["worker"]
)
RUNNING = Gauge("optimist_scheduler_requests_running", "Requests with a slot", ["worker"])
WAITING = Gauge("optimist_scheduler_requests_waiting", "Requests without a slot", ["worker"])
FREE_BLOCKS = Gauge(
    "optimist_scheduler_kv_cache_free_blocks", "KV blocks that no request owns", ["worker"]
)
BLOCKS = Gauge("optimist_scheduler_kv_cache_blocks", "KV blocks of a worker", ["worker"])
PLANS_IN_FLIGHT = Gauge("optimist_scheduler_plans_in_flight", "Plans at a worker", ["worker"])
TOKENS = Counter(
    "optimist_scheduler_delivered_tokens", "Tokens delivered to gateways, as they come"
)
DRAFT_WIDTH = Histogram(
    "optimist_scheduler_draft_tokens_per_row",
    "Drafts per row, mean of a plan",
    buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128),
)
WORKER_LOSSES = Counter("optimist_scheduler_worker_losses", "Times a worker's stream broke")
INTERNAL_ERRORS = Counter(
    "optimist_scheduler_internal_errors",
    "Errors of the scheduler itself, each of which ended the requests of one worker",
)
MOVED = Counter(
    "optimist_scheduler_requests_moved",
    "Requests that went on at another worker, or at one that came back",
)
PROPOSER_IDLE_WAITS = Counter(
    "optimist_scheduler_proposer_idle_waits", "Waits after which the worker had nothing to run"
)
PROPOSER_LATE_WAITS = Counter(
    "optimist_scheduler_proposer_late_waits", "Waits that ended without it"
)
PROPOSER_WAIT_SECONDS = Histogram(
    "optimist_scheduler_proposer_wait_seconds",
    "How long steps waited for a proposer's answer",
    buckets=(
        *(0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.005, 0.006, 0.008),
        *(0.01, 0.011, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05),
    ),
)
PROPOSER_REFUSALS = Counter(
    "optimist_scheduler_proposer_refusals", "Requests that a proposer would not follow"
)
WINDOWS = Counter(
    "optimist_scheduler_windows_received",
    "Windows from proposers: taken, late (the output had gone on otherwise) or refused",
    ["outcome"],
)

PRESCHEDULES = Counter(
    "optimist_scheduler_preschedules", "Decisions computed ahead of a result", ["outcome"]
)
PRESCHEDULE_DISCARDS = Counter(
    "optimist_scheduler_preschedule_discards",
    "Decisions computed ahead and thrown away",
    ["reason"],
)
PRESCHEDULED_ROWS = Counter(
    "optimist_scheduler_prescheduled_rows",
    "Rows of decisions that were computed ahead and sent",
    ["outcome"],
)
PRESCHEDULE_SAVED = Histogram(
    "optimist_scheduler_preschedule_saved_seconds",
    "Time that decisions took which were computed ahead and sent as they were",
    buckets=(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01),
)
PREEMPTIONS = Counter("optimist_scheduler_preemptions", "Requests that lost their blocks")
STARVED = Counter(
    "optimist_scheduler_requests_starved", "Requests that went first because they starved"
)
FOLLOWED = Gauge(
    "optimist_scheduler_requests_followed",
    "Running requests that proposers follow: awake, or resting because that gains little",
    ["worker", "state"],
)
RESTED = Counter(
    "optimist_scheduler_requests_rested", "Times a request that was followed in vain rested"
)
WOKEN = Counter("optimist_scheduler_requests_woken", "Times a window woke a request that rested")
PREFIX_QUERIES = Counter("optimist_scheduler_prefix_cache_queries", "Tokens looked up in the cache")
PREFIX_HITS = Counter("optimist_scheduler_prefix_cache_hits", "Tokens that the cache held")

DRAFTS = DraftMetrics("optimist_scheduler")
SPEEDUP = Gauge(
    "optimist_scheduler_draft_effective_speedup",
    "Expected tokens per time with drafts over those without, from rates, widths and costs",
    ["source"],
)
DRAFT_LATENCY = Gauge(
    "optimist_scheduler_draft_latency_seconds",
    "Expected time of the drafter in a pass in which all rows draft, or until proposers answer",
    ["source"],
)
VERIFY_LATENCY = Gauge(
    "optimist_scheduler_verify_latency_seconds", "Expected time of that pass itself", ["source"]
)
OVERHEAD_RATIO = Gauge(
    "optimist_scheduler_draft_overhead_ratio",
    "Expected time of the drafter, or of proposers beside passes, relative to that of the pass",
    ["source"],
)

TURNS_PER_UPDATE = 16
"""Turns of a worker's loop after which its figures are shown, at rest or not."""
ESTIMATE_INTERVAL = 32
"""Results between two looks at what speculation is expected to bring."""

_TOTALS = {
    "num_preschedule_hits": PRESCHEDULES.labels("hit"),
    "num_preschedule_repairs": PRESCHEDULES.labels("repaired"),
    "num_dropped_rows": PRESCHEDULED_ROWS.labels("dropped"),
    "num_recomputed_rows": PRESCHEDULED_ROWS.labels("recomputed"),
    "num_added_rows": PRESCHEDULED_ROWS.labels("added"),
    "num_preemptions": PREEMPTIONS,
    "num_starved": STARVED,
    "num_rested": RESTED,
    "num_woken": WOKEN,
    "num_prefix_queries": PREFIX_QUERIES,
    "num_prefix_hits": PREFIX_HITS,
}
_FOLLOWED_STATES = "awake", "resting"


class StatsMetrics:
    """Brings one worker's figures to Prometheus; totals by what was added since the last time."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._connected = CONNECTED.labels(worker)
        self._connected.set(0)
        self._running, self._waiting = RUNNING.labels(worker), WAITING.labels(worker)
        self._free_blocks, self._blocks = FREE_BLOCKS.labels(worker), BLOCKS.labels(worker)
        self._plans_in_flight = PLANS_IN_FLIGHT.labels(worker)
        self._followed = [FOLLOWED.labels(worker, state) for state in _FOLLOWED_STATES]
        self._seen = dict.fromkeys(_TOTALS, 0)
        self._discards: dict[str, int] = {}
        self._num_kept_rows = 0
        self._num_hits = 0
        # What is not shown yet.
        self._num_turns = self._num_tokens = 0
        self._draft_widths: list[float] = []
        self._saved_seconds: list[float] = []
        self._next_estimate = 0
        self.preparation_seconds = 0.0
        """How long it took to compute the last decision that was computed ahead."""
        self.answer_seconds = 0.0
        """How long proposers take to answer."""
        self.wait_seconds = 0.0
        """For how long a pass is held up for their answers."""

    def show_connection(self, *, is_connected: bool) -> None:
        """Shows whether the worker takes plans."""
        self._connected.set(is_connected)

    def remove(self) -> None:
        """Shows the worker no longer; totals stay."""
        self._show_steps()
        for gauge in (CONNECTED, RUNNING, WAITING, FREE_BLOCKS, BLOCKS, PLANS_IN_FLIGHT):
            gauge.remove(self._worker)
        for state in _FOLLOWED_STATES:
            FOLLOWED.remove(self._worker, state)

    def observe_plan(self, plan: worker_pb2.ExecuteRequest, scheduler: Scheduler) -> None:
        """Takes a plan that was made, and what it cost no time to make, for the next `update`."""
        num_drafts = from_bytes(plan.num_draft_tokens)
        self._draft_widths.append(int(num_drafts.sum()) / len(num_drafts))
        num_hits = scheduler.stats.num_preschedule_hits
        if num_hits > self._num_hits:
            self._saved_seconds.append(self.preparation_seconds)
        self._num_hits = num_hits

    def observe_result(self, result: StepResult, outputs: StepOutputs) -> None:
        """Takes a run of a plan, for the next `update`."""
        self._num_tokens += len(outputs.token_ids)
        observe_drafts(result)

    def take_turn(self, scheduler: Scheduler) -> None:
        """Updates with every so many turns of the loop, and with each at rest or just after.

        To update takes as long as to decide what runs next.
        """
        is_at_rest = scheduler.num_plans_in_flight == 0
        if is_at_rest or self._num_turns == 0:
            self.update(scheduler)
        self._num_turns = 0 if is_at_rest else (self._num_turns + 1) % TURNS_PER_UPDATE

    def update(self, scheduler: Scheduler) -> None:
        """Counts what changed since the last call."""
        self._show_steps()
        stats = scheduler.stats
        self._running.set(scheduler.num_running)
        self._waiting.set(scheduler.num_waiting)
        self._free_blocks.set(scheduler.num_free_blocks)
        self._blocks.set(scheduler.config.num_blocks)
        self._plans_in_flight.set(scheduler.num_plans_in_flight)
        for gauge, number in zip(self._followed, scheduler.count_followed(), strict=True):
            gauge.set(number)
        for name, seen in self._seen.items():
            total = getattr(stats, name)
            if total != seen:
                _TOTALS[name].inc(total - seen)
                self._seen[name] = total
        if stats.num_results >= self._next_estimate:
            times = self.answer_seconds * 1e9, self.wait_seconds * 1e9
            for estimate in scheduler.estimate_speculation(*times):
                self._next_estimate = stats.num_results + ESTIMATE_INTERVAL
                label = estimate.source.label
                SPEEDUP.labels(label).set(estimate.speedup)
                DRAFT_LATENCY.labels(label).set(estimate.draft_ns / 1e9)
                VERIFY_LATENCY.labels(label).set(estimate.verify_ns / 1e9)
                OVERHEAD_RATIO.labels(label).set(estimate.overhead_ratio)
        num_kept = stats.num_prescheduled_rows - stats.num_dropped_rows - stats.num_recomputed_rows
        PRESCHEDULED_ROWS.labels("kept").inc(num_kept - self._num_kept_rows)
        self._num_kept_rows = num_kept
        for reason, total in stats.preschedule_discards.items():
            added = total - self._discards.get(reason, 0)
            if added:
                PRESCHEDULES.labels("discarded").inc(added)
                PRESCHEDULE_DISCARDS.labels(reason).inc(added)
                self._discards[reason] = total

    def _show_steps(self) -> None:
        TOKENS.inc(self._num_tokens)
        for width in self._draft_widths:
            DRAFT_WIDTH.observe(width)
        for seconds in self._saved_seconds:
            PRESCHEDULE_SAVED.observe(seconds)
        self._num_tokens = 0
        self._draft_widths.clear()
        self._saved_seconds.clear()


def observe_drafts(result: StepResult) -> None:
    """Counts the drafts of a run of a plan; rows with drafts of two sources count for each."""
    sources, emitted = result.draft_sources, result.num_emitted_tokens
    if not np.count_nonzero(sources):
        return
    columns = [sources, result.num_base_drafted_tokens, result.num_base_accepted_tokens, emitted]
    if len(of_form := result.num_form_drafted_tokens):
        forms = np.full_like(sources, FORM), of_form, result.num_form_accepted_tokens, emitted
        columns = [np.concatenate(pair) for pair in zip(columns, forms, strict=True)]
        columns = [column[columns[1] > 0] for column in columns]
    DRAFTS.observe(*columns)
