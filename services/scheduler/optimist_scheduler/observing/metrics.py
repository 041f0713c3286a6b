"""What the scheduler counts, for Prometheus."""

from collections import Counter as Counts
from collections.abc import Iterator, Mapping
from functools import partial
from operator import attrgetter

import numpy as np
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes
from optimist_common.drafts import FORM
from optimist_common.observing.metrics import DraftMetrics
from optimist_scheduler.core.base.values import SchedulerStats, StepOutputs
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.scheduler import Scheduler

CONNECTED = Gauge(
    "optimist_scheduler_worker_connected", "Whether a worker takes plans: 1 or 0", ["worker"]
)
_GAUGES = [
    (Gauge(f"optimist_scheduler_{name}", text, ["worker"]), attrgetter(attribute))
    for name, attribute, text in (
        ("requests_running", "num_running", "Requests with a slot"),
        ("requests_waiting", "num_waiting", "Requests without a slot"),
        ("kv_cache_free_blocks", "num_free_blocks", "KV blocks that no request owns"),
        ("kv_cache_blocks", "config.num_blocks", "KV blocks of a worker"),
        ("plans_in_flight", "num_plans_in_flight", "Plans at a worker"),
    )
]
"""What each scheduler has now, with what finds it."""
FOLLOWED = Gauge(
    "optimist_scheduler_requests_followed",
    "Running requests that proposers follow: awake, or resting because that gains little",
    ["worker", "state"],
)
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

PRESCHEDULE_SAVED = Histogram(
    "optimist_scheduler_preschedule_saved_seconds",
    "Time that decisions took which were computed ahead and sent as they were",
    buckets=(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01),
)
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

ESTIMATE_INTERVAL = 32
"""Results between two looks at what speculation is expected to bring."""
_FOLLOWED_STATES = "awake", "resting"


class TotalsCollector(Collector):
    """What schedulers have counted, all together, read whenever metrics are."""

    def __init__(self) -> None:
        self._stats: list[SchedulerStats] = []

    def add(self, stats: SchedulerStats) -> None:
        """Takes a scheduler's totals, which may be added before; they count when it is gone too."""
        if not any(each is stats for each in self._stats):
            self._stats.append(stats)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""

        def total(name: str) -> int:
            return sum(getattr(stats, name) for stats in self._stats)

        discards = sum((stats.preschedule_discards.copy() for stats in self._stats), Counts[str]())
        decisions = {
            "hit": total("num_preschedule_hits"),
            "repaired": total("num_preschedule_repairs"),
            "discarded": discards.total(),
        }
        changed = {each: total(f"num_{each}_rows") for each in ("dropped", "recomputed", "added")}
        kept = total("num_prescheduled_rows") - changed["dropped"] - changed["recomputed"]
        yield _counter("preschedules", "Decisions computed ahead of a result", "outcome", decisions)
        text = "Decisions computed ahead and thrown away"
        yield _counter("preschedule_discards", text, "reason", discards)
        text = "Rows of decisions that were computed ahead and sent"
        yield _counter("prescheduled_rows", text, "outcome", {"kept": kept, **changed})
        for metric, name, text in (
            ("preemptions", "num_preemptions", "Requests that lost their blocks"),
            ("requests_starved", "num_starved", "Requests that went first because they starved"),
            ("requests_rested", "num_rested", "Times a request that was followed in vain rested"),
            ("requests_woken", "num_woken", "Times a window woke a request that rested"),
            ("prefix_cache_queries", "num_prefix_queries", "Tokens looked up in the cache"),
            ("prefix_cache_hits", "num_prefix_hits", "Tokens that the cache held"),
        ):
            yield CounterMetricFamily(f"optimist_scheduler_{metric}", text, total(name))


def _counter(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"optimist_scheduler_{name}", text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


TOTALS = TotalsCollector()
REGISTRY.register(TOTALS)


class WorkerMetrics:
    """The figures of one worker."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._connected = CONNECTED.labels(worker)
        self._connected.set(0)
        for gauge, _ in _GAUGES:
            gauge.labels(worker)
        self._num_hits = self._next_estimate = 0
        self.preparation_seconds = 0.0
        """How long it took to compute the last decision that was computed ahead."""

    def begin(self, scheduler: Scheduler) -> None:
        """Shows a worker that takes plans, and what its scheduler has from now on."""
        self._connected.set(1)
        TOTALS.add(scheduler.stats)
        for gauge, find in _GAUGES:
            gauge.labels(self._worker).set_function(partial(find, scheduler))
        for index, state in enumerate(_FOLLOWED_STATES):
            number = partial(_count_followed, scheduler, index)
            FOLLOWED.labels(self._worker, state).set_function(number)

    def lose(self) -> None:
        """Shows that the worker takes no plans."""
        self._connected.set(0)

    def remove(self) -> None:
        """Shows the worker no longer; totals stay."""
        for gauge in (CONNECTED, *(gauge for gauge, _ in _GAUGES)):
            gauge.remove(self._worker)
        for state in _FOLLOWED_STATES:
            FOLLOWED.remove(self._worker, state)

    def observe_plan(self, plan: worker_pb2.ExecuteRequest, scheduler: Scheduler) -> None:
        """Counts a plan that was made, and what it cost no time to make."""
        num_drafts = from_bytes(plan.num_draft_tokens)
        DRAFT_WIDTH.observe(int(num_drafts.sum()) / len(num_drafts))
        num_hits = scheduler.stats.num_preschedule_hits
        if num_hits > self._num_hits:
            PRESCHEDULE_SAVED.observe(self.preparation_seconds)
        self._num_hits = num_hits

    def observe_result(
        self,
        result: StepResult,
        outputs: StepOutputs,
        scheduler: Scheduler,
        answer_seconds: float,
        wait_seconds: float,
    ) -> None:
        """Counts a run of a plan, and shows now and then what speculation may bring.

        Proposers take `answer_seconds` to answer, and a pass is held up for `wait_seconds`.
        """
        TOKENS.inc(len(outputs.token_ids))
        observe_drafts(result)
        num_results = scheduler.stats.num_results
        if num_results < self._next_estimate:
            return
        for estimate in scheduler.estimate_speculation(answer_seconds * 1e9, wait_seconds * 1e9):
            self._next_estimate = num_results + ESTIMATE_INTERVAL
            label = estimate.source.label
            SPEEDUP.labels(label).set(estimate.speedup)
            DRAFT_LATENCY.labels(label).set(estimate.draft_ns / 1e9)
            VERIFY_LATENCY.labels(label).set(estimate.verify_ns / 1e9)
            OVERHEAD_RATIO.labels(label).set(estimate.draft_ns / estimate.verify_ns)


def _count_followed(scheduler: Scheduler, index: int) -> int:
    return scheduler.count_followed()[index]


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
