"""Requests with windows and a model drafter in virtual time: how right either is, what it costs.

The loop is the engine of `optimist_bench.harness.virtual`; what a worker and a proposer do is made
up.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from optimist_aligner.drafting.draft import Draft
from optimist_bench.harness.truth_worker import Row, TruthWorker
from optimist_bench.harness.virtual.proposing import Links, Proposer
from optimist_bench.harness.virtual.scheduling import Engine
from optimist_bench.harness.virtual.timeline import Cores, Service, Timeline
from optimist_bench.harness.virtual.worker import Worker
from optimist_bench.windows.settings import WindowsSettings
from optimist_common.columns import to_bytes
from optimist_common.drafts import DraftSource
from optimist_proposer.core.live_requests import SentWindow
from optimist_proposer.core.messages import Answer, Observation, Open
from optimist_scheduler.core.base.values import StepOutputs
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker

VOCAB_SIZE = 1000
NUM_TOKENS = 160
MOST_NODES = 64
PERIOD, COPIED = 32, 22
"""Of so many tokens, so many are read in the prediction where that holds partly."""
NUM_LEVELS = 6


@dataclass(frozen=True)
class Windows:
    """What the proposer says of the next tokens."""

    copied: float
    """How many of a text's tokens it knows: all, those of `COPIED`, none."""
    claim: float = 0.97
    """What it says of tokens that it has read."""
    guess: float = 0.3
    """What it says of those that it guesses, which are wrong."""


@dataclass(frozen=True)
class Drafting:
    """A model that drafts."""

    right: float
    """Chance that a token is right."""
    level_ms: float
    """What a level takes."""


@dataclass(frozen=True)
class Passes:
    """What passes take."""

    base_ms: float
    token_ms: float

    def find_ms(self, num_tokens: int) -> float:
        """Returns the time of a pass."""
        return self.base_ms + self.token_ms * num_tokens


class DraftingWorker(TruthWorker):
    """Drafts with a model where windows have nothing."""

    drafter = DraftSource.EAGLE

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        model: worker_pb2.DescribeResponse,
        passes: Passes,
        drafting: Drafting,
    ) -> None:
        super().__init__(texts, model)
        self._passes, self._drafting = passes, drafting
        self._deepest = 0
        """The largest level that the drafter has drafted in a pass."""
        self._most: int | None = None
        self.num_passes, self.drafter_us = 0, 0.0

    def execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteResponse:
        """Runs a plan."""
        self._deepest = 0
        if request.HasField("max_drafter_tokens"):
            self._most = request.max_drafter_tokens
        response = super().execute(request)
        response.draft_positions = b""
        response.draft_ns = round(1000 * self._draft_us)
        self.num_passes += 1
        self.drafter_us += self._draft_us
        return response

    def find_pass_us(self, num_tokens: int, _num_rows: int) -> float:
        """Returns the time of the pass that was run last."""
        return 1000 * self._passes.find_ms(num_tokens) + self._draft_us

    @property
    def _draft_us(self) -> float:
        return 1000 * self._drafting.level_ms * self._deepest

    def draft(self, row: Row, most: int, least_chance: float) -> tuple[int, int, int]:
        """Is right as often as the model is, token by token."""
        most = min(most, NUM_LEVELS if self._most is None else self._most)
        self._deepest = max(self._deepest, most)
        num_right, name, right = 0, hash(tuple(row.truth[:4])), self._drafting.right
        while num_right < most and Random(name + row.num_output + num_right).random() < right:
            num_right += 1
        return 0, most, num_right


class Foreseer:
    """Follows requests: knows what they say, and tells as much of it as `Windows` says."""

    def __init__(self, texts: Sequence[Sequence[int]], windows: Windows) -> None:
        self._texts, self._windows = texts, windows
        self._known: dict[str, list[int]] = {}
        self._sent: dict[str, SentWindow] = {}

    def open(self, request: Open, answer: Answer) -> None:
        """Begins to follow a request."""
        self._known[request.request_id] = []
        self._propose(request.request_id, answer)

    def observe(
        self, observations: Mapping[str, Sequence[Observation]], answer: Answer
    ) -> Iterator[None]:
        """Follows outputs."""
        for request_id, parts in observations.items():
            for part in parts:
                new = part.token_ids[len(self._known[request_id]) - part.position :]
                self._known[request_id] += new
                if request_id in self._sent:
                    self._sent[request_id].walk(array("i", new))
            self._propose(request_id, answer)
            yield

    def drop(self, request_id: str) -> None:
        """Follows a request no longer."""
        self._known.pop(request_id, None)

    def _propose(self, request_id: str, answer: Answer) -> None:
        last, base = self._sent.get(request_id), len(self._known[request_id])
        if last is not None and 2 * last.num_ahead >= MOST_NODES:
            return
        if not (draft := self._foresee(self._texts[int(request_id)], base)).token_ids:
            return
        window = SentWindow(base, draft)
        if last is not None and last.is_alive and window.num_ahead <= last.num_ahead:
            return
        self._sent[request_id] = answer.windows[request_id] = window

    def _foresee(self, text: Sequence[int], base: int) -> Draft:
        token_ids, values, value = list[int](), list[float](), 1.0
        if self._windows.copied < 0:
            return Draft()
        # Where it has come from what it has read, it takes the text to go on there.
        is_read = base % PERIOD < COPIED * self._windows.copied or base == 0
        for place in range(base, min(base + MOST_NODES, len(text))):
            is_right = place % PERIOD < COPIED * self._windows.copied
            value *= self._windows.claim if is_read else self._windows.guess
            token_ids.append(text[place] if is_right else (text[place] + 1) % VOCAB_SIZE)
            values.append(value)
        numbers = range(base, base + len(token_ids))
        parents = array("i", range(-1, len(token_ids) - 1))
        return Draft(array("i", token_ids), parents, array("i", numbers), array("f", values))


class Load(Service):
    """Keeps so many requests running; the time of the first ones, which teach, is left out."""

    def __init__(
        self,
        timeline: Timeline,
        engine: Engine,
        texts: Sequence[Sequence[int]],
        num_rows: int,
        *,
        is_predicted: bool,
    ) -> None:
        super().__init__(timeline, Cores(0))
        self._engine, self._texts, self._num_rows = engine, texts, num_rows
        self._is_predicted = is_predicted
        self._number, self._num_tokens, self._began = 0, 0, 0.0
        self.running: set[int] = set()

    @property
    def rate(self) -> float:
        """Tokens per virtual second."""
        return 1e6 * self._num_tokens / (self._timeline.now - self._began)

    def begin(self) -> None:
        """Sends the first requests."""
        for _ in range(self._num_rows):
            self._add()

    def read(self, outputs: StepOutputs) -> None:
        """Sends a request for each that has ended."""
        if self._began:
            self._num_tokens += len(outputs.token_ids)
        for ended in outputs.ended:
            self.running.remove(ended.handle)
            if self._number < len(self._texts):
                self._add()
        if not self._began and self._number >= len(self._texts) // 3:
            self._began = self.time

    def _add(self) -> None:
        number, self._number = self._number, self._number + 1
        self.running.add(number)
        new = NewRequest(
            str(number),
            [number],
            NUM_TOKENS,
            array("i", self._texts[number]) if self._is_predicted else array("i"),
            sampling_message=scheduler_pb2.Add().sampling,
            is_followed=True,
            handle=number,
        )
        self.send(50.0, partial(self._engine.ask, partial(self._engine.add, new)))


@dataclass(frozen=True)
class Run:
    """What came of a run."""

    rate: float
    """Tokens per virtual second."""
    num_passes: int
    drafter_share: float
    """Of the time."""


def run(
    windows: Windows | None,
    drafting: Drafting | None,
    passes: Passes,
    num_rows: int,
    depth: int,
    *,
    is_predicted: bool = True,
) -> Run:
    """Runs requests with a proposer, a drafter, both or neither."""
    random = Random(1)
    numbers = range(6 + 3 * num_rows)
    texts = [[random.randrange(VOCAB_SIZE) for _ in range(NUM_TOKENS)] for _ in numbers]
    timeline, settings = Timeline(), WindowsSettings(concurrency=num_rows, depth=depth)
    foreseer = Foreseer(texts, windows or Windows(-1))
    proposer = Proposer(timeline, Cores(0), settings, foreseer)  # type: ignore[arg-type]
    message = _describe(passes, drafting, num_rows)
    description = describe_worker(
        message,
        SchedulerSettings(
            max_plans_in_flight=depth,
            max_num_waiting=num_rows,
            follow="all" if windows else "predictions",
        ),
    )
    scheduler = Scheduler(description.config, description.costs, description.drafter_us)
    engine = Engine(timeline, Cores(0), settings, scheduler, Links([proposer]))
    model = DraftingWorker(texts, message, passes, drafting or Drafting(0, 0))
    worker = Worker(timeline, Cores(0), settings, model, model.find_pass_us)
    is_predicted = is_predicted and windows is not None
    load = Load(timeline, engine, texts, num_rows, is_predicted=is_predicted)
    engine.run_plan = worker.run
    worker.answer = lambda response: engine.ask(partial(engine.take_result, response))
    engine.deliver = lambda outputs: load.ask(partial(load.read, outputs))
    load.ask(load.begin)
    timeline.run()
    assert not load.running
    return Run(load.rate, model.num_passes, model.drafter_us / timeline.now)


def _describe(
    passes: Passes, drafting: Drafting | None, num_rows: int
) -> worker_pb2.DescribeResponse:
    sizes = [2**power for power in range(10)]
    message = worker_pb2.DescribeResponse(
        model="made up",
        vocab_size=VOCAB_SIZE,
        max_model_len=512,
        block_size=16,
        num_blocks=64 * num_rows,
        max_num_seqs=num_rows,
        max_num_batched_tokens=1024,
        cost_num_tokens=to_bytes(sizes),
        cost_us=to_bytes([round(1000 * passes.find_ms(size)) for size in sizes]),
    )
    if drafting is not None:
        message.drafter = DraftSource.EAGLE.value  # type: ignore[assignment]
        message.max_drafter_tokens = message.max_drafter_depth = NUM_LEVELS
        us = [round(1000 * drafting.level_ms * level) for level in range(1, NUM_LEVELS + 1)]
        message.drafter_us = to_bytes(us)
    return message
