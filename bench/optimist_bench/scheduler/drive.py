"""A scheduler's core, requests that come and go, and a worker that answers at once."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns, thread_time_ns
from typing import Any, TypeVar

from optimist.worker.v1 import worker_pb2
from optimist_bench.harness.simulated_worker import SimulatedModel, SimulatedWorker
from optimist_bench.scheduler.traffic import MAX_OUTPUT_TOKENS, PROMPT_TOKENS, Traffic
from optimist_common.columns import from_bytes
from optimist_scheduler.core.base.values import StepOutputs
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker
from optimist_scheduler.workers.translate import plan_message, step_result
from optimist_worker.core.plan import Sizes
from optimist_worker.core.plan import StepResult as WorkerResult
from optimist_worker.execution.codec import decode_plan, encode_result


@dataclass(frozen=True, slots=True)
class Exchange:
    """A plan and what the worker answered."""

    plan: Plan
    response: worker_pb2.ExecuteResponse


def time_exchanges(exchanges: Iterable[Exchange], sizes: Sizes, num_rounds: int) -> list[int]:
    """Takes each plan to bytes and back, and its result, as often as there are rounds.

    Returns:
        Nanoseconds of each exchange in each round.
    """
    prepared = [(each.plan, _worker_result(each.response)) for each in exchanges]
    return [
        _time_exchange(plan, result, sizes) for _ in range(num_rounds) for plan, result in prepared
    ]


def _time_exchange(plan: Plan, result: WorkerResult, sizes: Sizes) -> int:
    started = perf_counter_ns()
    data = plan_message(plan).SerializeToString()
    decode_plan(worker_pb2.ExecuteRequest.FromString(data), sizes)
    data = encode_result(result, step_ns=1, idle_ns=1).SerializeToString()
    step_result(worker_pb2.ExecuteResponse.FromString(data))
    return perf_counter_ns() - started


def _worker_result(response: worker_pb2.ExecuteResponse) -> WorkerResult:
    return WorkerResult(
        sequence=response.sequence,
        slots=from_bytes(response.slots),
        lengths=from_bytes(response.lengths),
        num_emitted_tokens=from_bytes(response.num_emitted_tokens),
        token_ids=from_bytes(response.token_ids),
        num_drafted_tokens=from_bytes(response.num_drafted_tokens),
        num_accepted_tokens=from_bytes(response.num_accepted_tokens),
        draft_sources=from_bytes(response.draft_sources),
        window_nodes=from_bytes(response.window_nodes),
        accepted_nodes=from_bytes(response.accepted_nodes),
        errors={},
        num_tokens=response.num_tokens,
    )


T = TypeVar("T")

PREFILL_TOKENS = 1024
"""Tokens of a pass besides those of the rows that decode."""
BLOCKS_PER_REQUEST = 128
"""Room for the longest request and some more, in which ended requests' blocks stay cached."""
NUM_EXCHANGES = 512
"""How many of the last plans and results are kept."""
STEP_NS = 1_000_000
"""How long each pass is said to take: drafts cost nothing, so all that may be are planned."""


@dataclass(slots=True)
class Times:
    """Nanoseconds of each step, by phase, and of each call that is not part of a step."""

    prepare: list[int] = field(default_factory=list)
    schedule: list[int] = field(default_factory=list)
    settle: list[int] = field(default_factory=list)
    cpu: list[int] = field(default_factory=list)
    """Processor time of all phases of a step together."""
    add: list[int] = field(default_factory=list)
    window: list[int] = field(default_factory=list)
    num_rows: list[int] = field(default_factory=list)
    """Rows of the step's plan."""
    num_planned_drafts: int = 0
    num_tokens: int = 0
    """Tokens delivered."""


class Drive:
    """A scheduler and a worker that answers at once."""

    def __init__(
        self, requests: int, draft_tokens: int, depth: int, acceptance: float, seed: int
    ) -> None:
        """Adds the first requests; see the settings of the benchmark."""
        model = SimulatedModel(
            max_model_len=PROMPT_TOKENS + MAX_OUTPUT_TOKENS,
            num_blocks=requests * BLOCKS_PER_REQUEST,
            max_num_seqs=requests,
            max_num_batched_tokens=requests * (1 + draft_tokens) + PREFILL_TOKENS,
            acceptance=acceptance,
            varies_drafts=True,
            seed=seed,
        )
        scheduling = SchedulerSettings(
            max_num_waiting=requests,
            num_speculative_tokens=draft_tokens,
            max_plans_in_flight=depth,
        )
        self.scheduler = Scheduler(describe_worker(model.describe(), scheduling).config)
        self.times = Times()
        self._worker = SimulatedWorker(model)
        self.sizes = Sizes(
            model.num_blocks,
            model.block_size,
            model.max_num_seqs,
            model.max_model_len,
            model.max_num_batched_tokens,
        )
        self._traffic = Traffic(model, requests, seed)
        self._num_steps = 0
        self._cpu_ns = 0
        self._in_flight: deque[tuple[Plan, worker_pb2.ExecuteRequest]] = deque()
        self.exchanges: deque[Exchange] = deque(maxlen=NUM_EXCHANGES)
        """The last plans that were settled, and their results."""
        self._add(range(requests))

    @property
    def _now(self) -> float:
        return self._num_steps * STEP_NS / 1e9

    def step(self) -> None:
        """Settles a result, schedules, prepares; then requests and windows come in.

        In this order an engine does it: what a step's outputs lead to arrives while the next plans
        run, when the next decision is prepared already.
        """
        self._num_steps += 1
        self._cpu_ns = 0
        scheduler, times = self.scheduler, self.times
        outputs = None
        if self._in_flight:
            result = self._run_worker()
            outputs = self._timed(times.settle, scheduler.settle, result)
            times.num_rows.append(len(result.slots))
        else:
            # The only request has ended, and the next one is not planned yet.
            times.settle.append(0)
            times.num_rows.append(0)
        self._schedule()
        self._timed(times.prepare, scheduler.prepare)
        times.cpu.append(self._cpu_ns)
        if outputs is not None:
            self._answer(outputs)

    def _schedule(self) -> None:
        """Fills the worker's queue."""
        spent: list[int] = []
        while self.scheduler.can_send:
            plan = self._timed(spent, self.scheduler.schedule, self._now)
            if plan is None:
                break
            self.times.num_planned_drafts += int(plan.num_draft_tokens.sum())
            self._in_flight.append((plan, plan_message(plan)))
        self.times.schedule.append(sum(spent))

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
        self._set_windows(self._traffic.observe(outputs))
        self._add([ended.handle for ended in outputs.ended])

    def _add(self, handles: Sequence[int]) -> None:
        for handle in handles:
            request = self._traffic.make_request(handle)
            self._timed(self.times.add, self.scheduler.add, request, self._now)
        self._set_windows(handles)

    def _set_windows(self, handles: Sequence[int]) -> None:
        """Brings windows of some requests in one answer."""
        windows = [self._traffic.make_window(handle) for handle in handles]
        spent: list[int] = []
        self._timed(spent, self.scheduler.set_windows, windows)
        self.times.window += [spent[0] // len(windows)] * len(windows) if windows else []

    def _timed(self, times: list[int], call: Callable[..., T], *arguments: Any) -> T:
        cpu_started, started = thread_time_ns(), perf_counter_ns()
        value = call(*arguments)
        times.append(perf_counter_ns() - started)
        self._cpu_ns += thread_time_ns() - cpu_started
        return value
