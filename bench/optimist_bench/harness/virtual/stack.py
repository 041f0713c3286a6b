"""A worker, a scheduler and proposers in virtual time, and who sends them requests."""

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from optimist.common.v1 import sampling_pb2
from optimist.worker.v1 import worker_pb2
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_bench.harness.command import ProposerAlgorithm
from optimist_bench.harness.pair import Pair
from optimist_bench.harness.truth_worker import TruthWorker
from optimist_bench.harness.virtual.proposing import Links, make_proposer
from optimist_bench.harness.virtual.scheduling import Engine
from optimist_bench.harness.virtual.settings import VirtualSettings
from optimist_bench.harness.virtual.timeline import Cores, Service, Timeline
from optimist_common.columns import INT32_BYTES
from optimist_scheduler.core.base.values import Ended, StepOutputs
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker

PassTime = Callable[[int, int], float]
"""Microseconds of a pass by its tokens and its rows."""


class Worker(Service):
    """The worker: passes take their time, of which its own work is a part."""

    def __init__(
        self,
        timeline: Timeline,
        cores: Cores,
        settings: VirtualSettings,
        model: TruthWorker,
        find_pass_us: PassTime,
    ) -> None:
        super().__init__(timeline, cores)
        self._settings, self._model, self._find_pass_us = settings, model, find_pass_us
        self.answer: Callable[[worker_pb2.ExecuteResponse], None]
        """Takes results when they have reached the scheduler."""
        self._plans: deque[worker_pb2.ExecuteRequest] = deque()
        self._runs = False
        self._idle_since = 0.0

    def run(self, plan: worker_pb2.ExecuteRequest) -> None:
        """Runs a plan after those that came before."""
        self._plans.append(plan)
        if not self._runs:
            self._begin_pass()

    def _begin_pass(self) -> None:
        self._runs = True
        self.ask(partial(self._execute, self._plans.popleft(), self._timeline.now))

    def _execute(self, plan: worker_pb2.ExecuteRequest, started: float) -> None:
        response, settings = self._model.execute(plan), self._settings
        num_rows = len(response.slots) // INT32_BYTES
        self.spend(settings.worker_us + settings.worker_row_us * num_rows)
        pass_us = self._find_pass_us(response.num_tokens, num_rows)
        left_us = max(started + pass_us - self.time, 0.0)
        response.idle_ns = round(1000 * (started - self._idle_since))
        response.step_ns = round(1000 * (self.time + left_us - started))
        self.send(left_us, self._end_pass)
        self.send(left_us + settings.wire_us, partial(self.answer, response))

    def _end_pass(self) -> None:
        self._runs, self._idle_since = False, self._timeline.now
        if self._plans:
            self._begin_pass()


class Stack:
    """A scheduler with its worker and proposers, which have seen nothing yet."""

    def __init__(
        self,
        timeline: Timeline,
        cores: Cores,
        settings: VirtualSettings,
        scheduling: SchedulerSettings,
        description: worker_pb2.DescribeResponse,
        pairs: Sequence[Pair],
        find_pass_us: PassTime,
        vocabulary: Vocabulary,
        algorithm: ProposerAlgorithm = "auto",
        num_proposers: int = 1,
    ) -> None:
        """Sets the services up as the real ones are.

        Args:
            timeline: When everything happens.
            cores: That the services share.
            settings: What they cost.
            scheduling: The scheduler's settings.
            description: What the worker says of itself.
            pairs: What the worker says, by the seeds of requests.
            find_pass_us: How long its passes take.
            vocabulary: Of the proposers.
            algorithm: What they follow with.
            num_proposers: How many there are.
        """
        self.proposers = [
            make_proposer(timeline, cores, settings, vocabulary, algorithm)
            for _ in range(num_proposers)
        ]
        described = describe_worker(description, scheduling)
        scheduler = Scheduler(described.config, described.timings)
        self.engine = Engine(timeline, cores, settings, scheduler, Links(self.proposers))
        model = TruthWorker([pair.truth for pair in pairs], description)
        worker = Worker(timeline, cores, settings, model, find_pass_us)
        self.engine.run_plan = worker.run
        worker.answer = lambda result: self.engine.ask(partial(self.engine.take_result, result))


class Load(Service):
    """Who sends the requests, pairs in turn, and compares what comes out."""

    def __init__(
        self,
        timeline: Timeline,
        cores: Cores,
        settings: VirtualSettings,
        pairs: Sequence[Pair],
        stack: Stack,
        *,
        is_followed: bool = True,
    ) -> None:
        """Begins with nothing; `is_followed` is whether proposers follow the requests."""
        super().__init__(timeline, cores)
        self.costs, self.pairs = settings, pairs
        self.num_begun = self.num_tokens = self.num_rows = 0
        """Requests that were sent, and what has come: tokens, and rows of steps."""
        self.live: dict[int, tuple[NewRequest, array[int]]] = {}
        """What runs, by its handle: the request, and its output so far."""
        self.all_right = True
        """Whether the outputs were the pairs' so far."""
        self._is_followed = is_followed
        self.use(stack)

    def use(self, stack: Stack) -> None:
        """Sends a stack what runs, to go on after what has come out, and all that comes later."""
        self.stack = stack
        stack.engine.deliver = lambda outputs: self.ask(partial(self._read, stack, outputs))
        for new, token_ids in self.live.values():
            self._send(replace(new, output_token_ids=token_ids))

    def add(self) -> None:
        """Sends the request of the next pair, whose number is its seed."""
        number = self.num_begun % len(self.pairs)
        self.num_begun += 1
        handle, pair = self.num_begun, self.pairs[number]
        new = NewRequest(
            f"request-{handle}",
            pair.prompt,
            len(pair.truth),
            pair.predicted,
            sampling_message=sampling_pb2.SamplingParams(seed=number),
            is_followed=self._is_followed,
            handle=handle,
        )
        self.live[handle] = new, array("i")
        self._send(new)

    def _send(self, new: NewRequest) -> None:
        engine = self.stack.engine
        self.send(self.costs.wire_us, partial(engine.ask, partial(engine.add, new)))

    def _read(self, stack: Stack, outputs: StepOutputs) -> None:
        """Takes the outputs of a step; those of a stack that was left come too late."""
        if stack is not self.stack:
            return
        self.spend(self.costs.load_token_us * len(outputs.token_ids))
        self.num_tokens += len(outputs.token_ids)
        self.num_rows += len(outputs.handles)
        token_ids, start = array("i", outputs.token_ids.tolist()), 0
        counts = outputs.num_tokens.tolist()
        for handle, count in zip(outputs.handles.tolist(), counts, strict=True):
            self.live[handle][1].extend(token_ids[start : start + count])
            start += count
        for ended in outputs.ended:
            new, output = self.live.pop(ended.handle)
            self.all_right &= output == self.pairs[new.sampling_message.seed].truth
            self.take_end(ended)
        self.take_step(outputs)

    def take_end(self, ended: Ended) -> None:
        """Takes a request that has ended."""
        raise NotImplementedError

    def take_step(self, outputs: StepOutputs) -> None:
        """Takes the outputs of a step when all of it was read."""
        raise NotImplementedError
