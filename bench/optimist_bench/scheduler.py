"""`optimist bench scheduler`: what the scheduler's core costs, with results made up by chance."""

import gc
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from time import perf_counter_ns
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from optimist.worker.v1 import worker_pb2
from optimist_bench.codec import Exchange, time_exchanges
from optimist_bench.simulated_worker import SimulatedModel, SimulatedWorker
from optimist_bench.table import format_table
from optimist_bench.traffic import MAX_OUTPUT_TOKENS, PROMPT_TOKENS, Traffic
from optimist_common.settings import ServiceSettings, load_settings
from optimist_scheduler.core.config import EngineConfig
from optimist_scheduler.core.output import StepOutputs
from optimist_scheduler.core.plan import Plan, StepResult
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.translate import plan_message, step_result
from optimist_worker.codec import Limits

T = TypeVar("T")

PREFILL_TOKENS = 1024
"""Tokens of a pass besides those of the rows that decode."""
BLOCKS_PER_REQUEST = 128
"""Room for the longest request and some more, in which ended requests' blocks stay cached."""
NUM_EXCHANGES = 512
"""How many of the last plans and results are coded, and how often each."""
CODEC_ROUNDS = 4
STEP_NS = 1_000_000
"""How long each pass is said to take: drafts cost nothing, so all that may be are planned."""
WARM_UP_STEPS = 300
"""Steps after the last of the first requests was admitted: by then, cached blocks are evicted."""


class SchedulerBenchSettings(ServiceSettings):
    """Measures the scheduler's core alone: prepare, schedule, settle; and beside it the codec."""

    section: ClassVar[str] = "bench_scheduler"

    requests: int = Field(256, ge=1, le=4096, description="requests that run at once")
    draft_tokens: int = Field(4, ge=0, le=256, description="drafts per request and step")
    depth: int = Field(2, ge=1, le=3, description="plans in flight")
    steps: int = Field(1000, ge=1, le=1_000_000, description="steps that are measured")
    acceptance: float = Field(
        0.9995, ge=0, le=1, description="chance of each token to be the predicted one"
    )
    seed: int = Field(0, ge=0, description="seed of lengths and acceptance")


@dataclass(slots=True)
class Times:
    """Nanoseconds of each step, by phase, and of each call that is not part of a step."""

    prepare: list[int] = field(default_factory=list)
    schedule: list[int] = field(default_factory=list)
    settle: list[int] = field(default_factory=list)
    add: list[int] = field(default_factory=list)
    window: list[int] = field(default_factory=list)
    num_rows: list[int] = field(default_factory=list)
    """Rows of the step's plan."""
    num_planned_drafts: int = 0
    num_tokens: int = 0
    """Tokens delivered."""


class Drive:
    """A scheduler and a worker that answers at once."""

    def __init__(self, settings: SchedulerBenchSettings) -> None:
        requests = settings.requests
        model = SimulatedModel(
            max_model_len=PROMPT_TOKENS + MAX_OUTPUT_TOKENS,
            num_blocks=requests * BLOCKS_PER_REQUEST,
            max_num_seqs=requests,
            max_num_batched_tokens=requests * (1 + settings.draft_tokens) + PREFILL_TOKENS,
            acceptance=settings.acceptance,
            varies_drafts=True,
            seed=settings.seed,
        )
        config = EngineConfig(
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            num_blocks=model.num_blocks,
            block_size=model.block_size,
            max_num_seqs=model.max_num_seqs,
            max_num_batched_tokens=model.max_num_batched_tokens,
            max_num_waiting=requests,
            num_speculative_tokens=settings.draft_tokens,
            max_plans_in_flight=settings.depth,
            enable_prefix_caching=True,
        )
        self.scheduler = Scheduler(config)
        self.times = Times()
        self._worker = SimulatedWorker(model)
        self.limits = Limits(model.num_blocks, model.max_num_seqs, model.max_num_batched_tokens)
        self._traffic = Traffic(model, requests, settings.seed)
        self._num_steps = 0
        self._in_flight: deque[tuple[Plan, worker_pb2.ExecuteRequest]] = deque()
        self.exchanges: deque[Exchange] = deque(maxlen=NUM_EXCHANGES)
        """The last plans that were settled, and their results."""
        for handle in range(requests):
            self._add(handle)

    @property
    def _now(self) -> float:
        return self._num_steps * STEP_NS / 1e9

    def step(self) -> None:
        """Settles a result, schedules, prepares; then requests and windows come in.

        In this order an engine does it: what a step's outputs lead to arrives while the next plans
        run, when the next decision is prepared already.
        """
        self._num_steps += 1
        scheduler, times = self.scheduler, self.times
        outputs = None
        if self._in_flight:
            result = self._run_worker()
            outputs = self._timed(times.settle, scheduler.settle, result)
            times.num_rows.append(len(result.slots))
        self._schedule()
        self._timed(times.prepare, scheduler.prepare)
        if outputs is not None:
            self._answer(outputs)

    def _schedule(self) -> None:
        """Fills the worker's queue."""
        spent = 0
        while self.scheduler.can_send:
            started = perf_counter_ns()
            plan = self.scheduler.schedule(self._now)
            spent += perf_counter_ns() - started
            if plan is None:
                break
            self.times.num_planned_drafts += int(plan.num_draft_tokens.sum())
            self._in_flight.append((plan, plan_message(plan)))
        self.times.schedule.append(spent)

    def _run_worker(self) -> StepResult:
        """Lets the worker run its next plan."""
        plan, message = self._in_flight.popleft()
        response = self._worker.execute(message)
        response.step_ns = STEP_NS
        self.exchanges.append(Exchange(plan, response))
        return step_result(response)

    def _answer(self, outputs: StepOutputs) -> None:
        """Brings windows, and a new request for each that ended."""
        self.times.num_tokens += len(outputs.token_ids)
        for handle in self._traffic.observe(outputs):
            self._set_window(handle)
        for ended in outputs.ended:
            self._add(ended.handle)

    def _add(self, handle: int) -> None:
        request = self._traffic.make_request(handle)
        self._timed(self.times.add, self.scheduler.add, request, self._now)
        self._set_window(handle)

    def _set_window(self, handle: int) -> None:
        new = self._traffic.make_window(handle)
        self._timed(self.times.window, self.scheduler.set_window, new.request_id, new.window)

    def _timed(self, times: list[int], call: Callable[..., T], *arguments: Any) -> T:
        started = perf_counter_ns()
        value = call(*arguments)
        times.append(perf_counter_ns() - started)
        return value


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    as_json = "--json" in arguments
    settings = load_settings(
        SchedulerBenchSettings, [word for word in arguments if word != "--json"]
    )
    report = measure(settings)
    print(describe(report))
    if as_json:
        print(json.dumps(report))
    return 0


def measure(settings: SchedulerBenchSettings) -> dict[str, Any]:
    """Drives the core through a warm-up and the measured steps; returns the report.

    The garbage collector stays on. What is there after the warm-up is frozen, so that it does not
    go through all of numpy and protobuf again and again.
    """
    drive = Drive(settings)
    while drive.scheduler.num_waiting or drive.scheduler.num_running < settings.requests // 2:
        drive.step()
    for _ in range(WARM_UP_STEPS):
        drive.step()
    gc.collect()
    gc.freeze()
    drive.times = Times()
    before = asdict(drive.scheduler.stats)
    try:
        for _ in range(settings.steps):
            drive.step()
    finally:
        gc.unfreeze()
    after = asdict(drive.scheduler.stats)
    counts = {name: after[name] - before[name] for name in before if name.startswith("num_")}
    codec = time_exchanges(drive.exchanges, drive.limits, CODEC_ROUNDS)
    return _report(settings, drive.times, codec, counts)


def _report(
    settings: SchedulerBenchSettings, times: Times, codec: list[int], counts: dict[str, int]
) -> dict[str, Any]:
    phases = list(zip(times.prepare, times.schedule, times.settle, strict=True))
    steps = [sum(phase) for phase in phases]
    num_rows = sum(times.num_rows)
    return {
        "requests": settings.requests,
        "draft_tokens": settings.draft_tokens,
        "depth": settings.depth,
        "steps": settings.steps,
        "acceptance": settings.acceptance,
        "us_per_request_step": _summary(
            [step / max(rows, 1) for step, rows in zip(steps, times.num_rows, strict=True)]
        ),
        "us_per_step": _summary(steps),
        "by_phase": {
            "prepare": _summary(times.prepare),
            "schedule": _summary(times.schedule),
            "settle": _summary(times.settle),
        },
        "codec_us": _summary(codec),
        "window_us": _summary(times.window),
        "add_us": _summary(times.add),
        "hits": round(counts["num_preschedule_hits"] / counts["num_plans"], 4),
        "recomputed_rows": round(
            counts["num_recomputed_rows"] / max(counts["num_prescheduled_rows"], 1), 4
        ),
        "prefix_hits": round(counts["num_prefix_hits"] / max(counts["num_prefix_queries"], 1), 4),
        "rows_per_step": round(num_rows / settings.steps, 1),
        "drafts_per_row": round(times.num_planned_drafts / num_rows, 3),
        "tokens_per_row": round(times.num_tokens / num_rows, 3),
        "windows_per_step": round(len(times.window) / settings.steps, 2),
        "replaced_per_step": round(len(times.add) / settings.steps, 3),
        "preemptions": counts["num_preemptions"],
    }


def _summary(nanoseconds: Sequence[float]) -> dict[str, float]:
    """Returns median, smallest and mean in microseconds; empty without a value."""
    if not nanoseconds:
        return {}
    return {
        "p50": round(median(nanoseconds) / 1e3, 3),
        "min": round(min(nanoseconds) / 1e3, 3),
        "mean": round(mean(nanoseconds) / 1e3, 3),
    }


def describe(report: dict[str, Any]) -> str:
    """Returns the report as a table of microseconds, and what the load was like."""
    lines = {
        "per request and step": report["us_per_request_step"],
        "per step": report["us_per_step"],
        **{f"  {name}": times for name, times in report["by_phase"].items()},
        "codec per step": report["codec_us"],
        "a window": report["window_us"],
        "a new request": report["add_us"],
    }
    rows = [
        (name, times["p50"], times["min"], times["mean"]) for name, times in lines.items() if times
    ]
    return "\n".join(
        [
            format_table(("us", "p50", "min", "mean"), rows),
            f"{report['requests']} requests, {report['draft_tokens']} drafts, depth "
            f"{report['depth']}; per step {report['replaced_per_step']} requests end and others "
            f"begin ({report['prefix_hits']:.0%} of their prompts cached), "
            f"{report['windows_per_step']} windows are set, {report['tokens_per_row']} tokens "
            f"per row come out; {report['hits']:.1%} of the decisions went out as they were made "
            f"ahead, {report['recomputed_rows']:.1%} of their rows were computed again",
        ]
    )
