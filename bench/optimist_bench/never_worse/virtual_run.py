"""Requests in virtual time on the cores of scheduler, proposer and worker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optimist.worker.v1 import worker_pb2
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_bench.harness.pair import Pair
from optimist_bench.harness.simulated_worker import SimulatedModel
from optimist_bench.harness.virtual.settings import VirtualSettings
from optimist_bench.harness.virtual.stack import Load, Stack
from optimist_bench.harness.virtual.timeline import Cores, Timeline
from optimist_bench.never_worse.curves import Curve, find_time
from optimist_common.columns import to_bytes
from optimist_scheduler.core.base.values import Ended, StepOutputs
from optimist_scheduler.settings import SchedulerSettings

COSTS = VirtualSettings(load_token_us=0)
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


class _Load(Load):
    """Sends the requests of all phases, and notes how long each phase took."""

    def __init__(
        self,
        timeline: Timeline,
        cores: Cores,
        run: Run,
        pairs: Sequence[Pair],
        make_stack: Callable[[], Stack],
        times: PassTimes,
    ) -> None:
        is_followed = run.num_speculative_tokens > 0
        super().__init__(timeline, cores, COSTS, pairs, make_stack(), is_followed=is_followed)
        self._run, self._make_stack, self._times = run, make_stack, times
        self._phases = list(run.phases)
        self._groups: list[int] = []
        self._num_left = 0
        """Requests of this group that have not begun."""
        self._restart_at = 0
        """How many tokens have come when the scheduler is lost; 0 for never."""
        self._began_us = 0.0
        self.seconds: list[float] = []
        """Of each phase, without stalls."""

    def go_on(self) -> None:
        """Begins the next group, and with it perhaps the next phase."""
        if not self._groups:
            if not self._phases:
                return
            self._begin_phase(self._phases.pop(0))
        self._num_left = self._groups.pop(0)
        for _ in range(min(self._num_left, self._run.rows)):
            self._add_next()

    def _begin_phase(self, phase: Phase) -> None:
        self._groups = list(phase.groups)
        numbers = range(self.num_begun, self.num_begun + sum(phase.groups))
        total = sum(len(self.pairs[number % len(self.pairs)].truth) for number in numbers)
        self._restart_at = self.num_tokens + total // 2 if phase.is_restarted else 0
        self._began_us = self.time - self._times.stalled_us

    def _add_next(self) -> None:
        self._num_left -= 1
        self.add()

    def take_end(self, ended: Ended) -> None:
        """See `Load.take_end`."""
        if not self.all_right:
            raise AssertionError("the simulated output is not the recorded one")
        if self._num_left:
            self._add_next()

    def take_step(self, outputs: StepOutputs) -> None:
        """See `Load.take_step`."""
        if 0 < self._restart_at <= self.num_tokens and self.live:
            self._restart_at = 0
            # The services that are lost run no further plan.
            self.stack.engine.run_plan = lambda _: None
            self.use(self._make_stack())
        # Outputs without an end may follow the last one.
        if outputs.ended and not self.live:
            if not self._groups:
                self.seconds.append((self.time - self._times.stalled_us - self._began_us) / 1e6)
            self.go_on()


def run_virtually(run: Run, pairs: Sequence[Pair], vocabulary: Vocabulary) -> list[float]:
    """Returns the virtual seconds of each phase."""
    timeline, cores, times = Timeline(), Cores(0), PassTimes(run)

    def make_stack() -> Stack:
        scheduling, description = _make_settings(run), _describe(run)
        return Stack(timeline, cores, COSTS, scheduling, description, pairs, times.find, vocabulary)

    load = _Load(timeline, cores, run, pairs, make_stack, times)
    load.ask(load.go_on)
    timeline.run()
    return load.seconds


def _describe(run: Run) -> worker_pb2.DescribeResponse:
    model = SimulatedModel(
        vocab_size=_VOCAB_SIZE,
        max_model_len=_MAX_MODEL_LEN,
        num_blocks=run.rows * BLOCKS_PER_ROW,
        max_num_seqs=run.rows,
        looks_up=True,
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


def _make_settings(run: Run) -> SchedulerSettings:
    return SchedulerSettings(
        num_speculative_tokens=run.num_speculative_tokens,
        draft_width=run.draft_width,
        max_num_waiting=run.rows,
        max_wait_seconds=0,
        # Texts come again, and each time their prompts are to be computed.
        enable_prefix_caching=False,
    )
