"""Requests in virtual time on the cores of scheduler, proposer and worker."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from optimist.common.v1 import sampling_pb2
from optimist.worker.v1 import worker_pb2
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_bench.harness.simulated_worker import SimulatedModel
from optimist_bench.harness.truth_worker import TruthWorker
from optimist_bench.harness.virtual.proposing import Links, make_proposer
from optimist_bench.harness.virtual.scheduling import Engine
from optimist_bench.harness.virtual.settings import VirtualSettings
from optimist_bench.harness.virtual.timeline import Cores, Service, Timeline
from optimist_bench.harness.virtual.worker import Worker
from optimist_bench.never_worse.curves import Curve, find_time
from optimist_bench.never_worse.texts import Case
from optimist_common.columns import to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.lookup import MOST_DRAFTS
from optimist_scheduler.core.base.values import StepOutputs
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker

STALL_EVERY = 33
STALL_TIMES = 10
"""A pass in 33 takes ten times as long."""
BUSY_SIZES = range(2, 65)
BUSY_TIMES = 5
"""Passes of these sizes were timed while the machine was busy."""
BLOCKS_PER_ROW = 256
_MAX_MODEL_LEN = 4096
_VOCAB_SIZE = 1 << 18


@dataclass(frozen=True)
class Phase:
    """Requests in groups, each of which begins when the one before has ended."""

    state: str
    """`cold` at the start of a scheduler, else `warm`."""
    groups: tuple[int, ...]
    """Requests of each."""
    is_restarted: bool = False
    """Whether another scheduler takes over when half of the tokens are out."""


@dataclass(frozen=True)
class Run:
    """What is run: with the same requests, a run with drafts and one without can be compared."""

    rows: int
    """Most requests at a time."""
    phases: tuple[Phase, ...]
    curve: Curve
    num_speculative_tokens: int = 64
    draft_width: str = "goodput"
    has_stalls: bool = False
    starts_busy: bool = False
    """Whether the scheduler gets a wrong curve."""


class PassTimes:
    """How long passes take; remembers for how long they have stalled."""

    def __init__(self, run: Run) -> None:
        self._curve, self._has_stalls = run.curve, run.has_stalls
        self._num_passes = 0
        self.stalled_us = 0.0

    def find(self, num_tokens: int, num_rows: int) -> float:
        """Returns microseconds by tokens and rows, of which the latter do not count."""
        pass_us = find_time(self._curve, max(num_tokens, 1))
        self._num_passes += 1
        if self._has_stalls and self._num_passes % STALL_EVERY == 0:
            self.stalled_us += (STALL_TIMES - 1) * pass_us
            return STALL_TIMES * pass_us
        return pass_us


class Load(Service):
    """Who sends the requests of all phases, and notes how long each phase took."""

    def __init__(
        self,
        timeline: Timeline,
        cores: Cores,
        run: Run,
        cases: Sequence[Case],
        services: "Services",
    ) -> None:
        super().__init__(timeline, cores)
        self._run, self._cases, self._services = run, cases, services
        self._phases = list(run.phases)
        self._groups: list[int] = []
        self._num_left = 0
        """Requests of this group that have not begun."""
        self._num_begun = 0
        self._num_tokens = 0
        """Of this phase, that have come."""
        self._restart_at = 0
        """How many these are when the scheduler is lost; 0 for never."""
        self._live: dict[int, tuple[NewRequest, list[int]]] = {}
        """What runs: the request, and its output so far."""
        self._began_us = 0.0
        self.seconds: list[float] = []
        """Of each phase, without stalls."""

    def go_on(self) -> None:
        """Begins the next group, and with it perhaps the next phase."""
        while not self._groups:
            if not self._phases:
                return
            self._begin_phase(self._phases.pop(0))
        self._num_left = self._groups.pop(0)
        for _ in range(min(self._num_left, self._run.rows)):
            self._add()

    def _begin_phase(self, phase: Phase) -> None:
        self._groups, self._num_tokens = list(phase.groups), 0
        numbers = range(self._num_begun, self._num_begun + sum(phase.groups))
        total = sum(len(self._cases[number % len(self._cases)].output) for number in numbers)
        self._restart_at = total // 2 if phase.is_restarted else 0
        self._began_us = self.time - self._services.times.stalled_us

    def read(self, services: "Services", outputs: StepOutputs) -> None:
        """Takes the outputs of a step."""
        if services is not self._services:
            return
        token_ids, start = outputs.token_ids.tolist(), 0
        for handle, count in zip(
            outputs.handles.tolist(), outputs.num_tokens.tolist(), strict=True
        ):
            self._live[handle][1].extend(token_ids[start : start + count])
            start += count
        self._num_tokens += start
        for ended in outputs.ended:
            self._take_end(ended.handle)
        if 0 < self._restart_at <= self._num_tokens and self._live:
            self._restart_at = 0
            self._restart()
        # Outputs without an end may follow the last one.
        if outputs.ended and not self._live:
            self._end_group()

    def _end_group(self) -> None:
        if not self._groups:
            stalled_us = self._services.times.stalled_us
            self.seconds.append((self.time - stalled_us - self._began_us) / 1e6)
        self.go_on()

    def _take_end(self, handle: int) -> None:
        new, token_ids = self._live.pop(handle)
        if token_ids != list(self._cases[new.sampling_message.seed].output):
            raise AssertionError("the simulated output is not the recorded one")
        if self._num_left:
            self._add()

    def _add(self) -> None:
        self._num_left -= 1
        number = self._num_begun % len(self._cases)
        self._num_begun += 1
        handle, case = self._num_begun, self._cases[number]
        new = NewRequest(
            f"request-{handle}",
            case.prompt,
            len(case.output),
            case.predicted,
            # By its seed the worker knows what comes out.
            sampling_message=sampling_pb2.SamplingParams(seed=number),
            is_followed=self._run.num_speculative_tokens > 0,
            handle=handle,
        )
        self._live[handle] = new, []
        self._send(new)

    def _send(self, new: NewRequest) -> None:
        engine = self._services.engine
        self.send(self._services.wire_us, partial(engine.ask, partial(engine.add, new)))

    def _restart(self) -> None:
        """Sends other services what runs, to go on after what has come out."""
        self._services = self._services.replace()
        self._services.connect(self)
        for new, token_ids in self._live.values():
            self._send(replace(new, output_token_ids=array("i", token_ids)))


class Services:
    """A scheduler with its worker and proposer, which have seen nothing yet."""

    def __init__(
        self,
        timeline: Timeline,
        cores: Cores,
        run: Run,
        cases: Sequence[Case],
        vocabulary: Vocabulary,
        times: PassTimes,
    ) -> None:
        self._arguments = timeline, cores, run, cases, vocabulary
        self.times = times
        settings = VirtualSettings()
        self.wire_us = settings.wire_us
        message = _describe(run)
        proposer = make_proposer(timeline, cores, settings, vocabulary)
        scheduler = _make_scheduler(run, message)
        self.engine = Engine(timeline, cores, settings, scheduler, Links([proposer]))
        truths = [case.output for case in cases]
        model = TruthWorker(truths, message, by_seed=True)
        worker = Worker(timeline, cores, settings, model, times.find)
        self.engine.run_plan = worker.run
        worker.answer = lambda result: self.engine.ask(partial(self.engine.take_result, result))

    def connect(self, load: Load) -> None:
        """Sends the outputs to who sends the requests."""
        self.engine.deliver = lambda outputs: load.ask(partial(load.read, self, outputs))

    def replace(self) -> "Services":
        """Returns others that have seen nothing; these run no further plan."""
        self.engine.run_plan = lambda _: None
        return Services(*self._arguments, self.times)


def run_virtually(run: Run, cases: Sequence[Case], vocabulary: Vocabulary) -> list[float]:
    """Returns the virtual seconds of each phase."""
    timeline, cores = Timeline(), Cores(0)
    services = Services(timeline, cores, run, cases, vocabulary, PassTimes(run))
    load = Load(timeline, cores, run, cases, services)
    services.connect(load)
    load.ask(load.go_on)
    timeline.run()
    return load.seconds


def _describe(run: Run) -> worker_pb2.DescribeResponse:
    model = SimulatedModel(
        vocab_size=_VOCAB_SIZE,
        max_model_len=_MAX_MODEL_LEN,
        num_blocks=run.rows * BLOCKS_PER_ROW,
        max_num_seqs=run.rows,
        drafter=Drafter(DraftSource.NGRAM, MOST_DRAFTS, MOST_DRAFTS),
    )
    message = model.describe()
    sizes, times = run.curve
    if run.starts_busy:
        timed = [
            time * (BUSY_TIMES if size in BUSY_SIZES else 1)
            for size, time in zip(sizes, times, strict=True)
        ]
        times = tuple(max(timed[: number + 1]) for number in range(len(timed)))
    message.cost_num_tokens, message.cost_us = to_bytes(sizes), to_bytes(times)
    return message


def _make_scheduler(run: Run, message: worker_pb2.DescribeResponse) -> Scheduler:
    settings = SchedulerSettings(
        num_speculative_tokens=run.num_speculative_tokens,
        draft_width=run.draft_width,
        max_num_waiting=run.rows,
        max_wait_seconds=0,
        # Texts come again, and each time their prompts are to be computed.
        enable_prefix_caching=False,
    )
    described = describe_worker(message, settings)
    return Scheduler(described.config, described.timings)
