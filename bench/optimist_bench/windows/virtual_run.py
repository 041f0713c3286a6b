"""A run in virtual time: the worker, who sends the requests, and the report."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from optimist_bench.harness.pair import Pair, load_vocabulary
from optimist_bench.harness.simulated_service import (
    SimulatedSettings,
    describe_model,
    find_step_us,
    make_model,
)
from optimist_bench.harness.truth_worker import TruthWorker
from optimist_bench.windows.proposing import Links, Proposer
from optimist_bench.windows.report import Costs, Progress, make_report
from optimist_bench.windows.requests import Requests
from optimist_bench.windows.scheduling import Engine
from optimist_bench.windows.settings import WindowsSettings
from optimist_bench.windows.timeline import Cores, Service, Timeline
from optimist_common.columns import INT32_BYTES
from optimist_proposer.service import build_following
from optimist_proposer.settings import ProposerSettings
from optimist_scheduler.core.base.values import StepOutputs
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker
from optimist_scheduler.workers.translate import finished_message

NO_LIMIT_MS = 2**31
"""Of processor time on a request: clocks decide nothing here."""


class Worker(Service):
    """The worker: passes take their time, of which its own work is a part."""

    def __init__(
        self, timeline: Timeline, cores: Cores, settings: WindowsSettings, model: TruthWorker
    ) -> None:
        super().__init__(timeline, cores)
        self._settings, self._model = settings, model
        self._simulated = SimulatedSettings(**settings.describe_worker())
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
        pass_us = find_step_us(self._simulated, response.num_tokens, num_rows)
        left_us = max(started + pass_us - self.time, 0.0)
        response.idle_ns = round(1000 * (started - self._idle_since))
        response.step_ns = round(1000 * (self.time + left_us - started))
        self.send(left_us, self._end_pass)
        self.send(left_us + settings.wire_us, partial(self.answer, response))

    def _end_pass(self) -> None:
        self._runs, self._idle_since = False, self._timeline.now
        if self._plans:
            self._begin_pass()


class Load(Service):
    """Who sends the requests: a new one for each that has ended."""

    def __init__(
        self,
        timeline: Timeline,
        cores: Cores,
        settings: WindowsSettings,
        requests: Requests,
        engine: Engine,
        proposers: Sequence[Proposer],
    ) -> None:
        super().__init__(timeline, cores)
        self._settings, self._requests, self._engine = settings, requests, engine
        self._proposers = proposers

    def begin(self) -> None:
        """Sends the first requests."""
        for _ in range(self._settings.concurrency):
            if self._requests.are_left:
                self._add()

    def read(self, outputs: StepOutputs) -> None:
        """Takes the outputs of a step."""
        self.spend(self._settings.load_token_us * len(outputs.token_ids))
        requests, totals = self._requests, self._requests.totals
        columns = outputs.handles, outputs.num_tokens, outputs.token_ids
        requests.take(*(column.tolist() for column in columns))
        for ended in outputs.ended:
            requests.end(ended.handle, finished_message(ended.handle, ended.finished))
            if requests.are_left:
                self._add()
            elif not totals.full.num_rows:
                totals.full = self._measure()
        if not requests.run:
            totals.progress = self._measure()

    def _measure(self) -> Progress:
        engine = self._engine
        costs = Costs(
            engine.num_windows,
            sum(proposer.busy_us for proposer in self._proposers) / 1e6,
            engine.busy_us / 1e6,
        )
        return self._requests.measure(self.time / 1e6, engine.read_stats(), costs)

    def _add(self) -> None:
        handle, number, pair = self._requests.begin()
        new = NewRequest(
            f"windows-{handle}",
            [number],
            len(pair.truth),
            pair.predicted,
            sampling_message=scheduler_pb2.Add().sampling,
            is_followed=True,
            handle=handle,
        )
        add = partial(self._engine.add, new)
        self.send(self._settings.wire_us, partial(self._engine.ask, add))


def run_virtually(
    settings: WindowsSettings, pairs: Sequence[Pair], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Runs all requests in virtual time; returns the report."""
    timeline, cores = Timeline(), Cores(settings.cores)
    proposing = ProposerSettings(
        model="", algorithm=settings.algorithm, max_alignment_ms=NO_LIMIT_MS
    )
    vocabulary = load_vocabulary(tokenizer)
    proposers = [
        Proposer(timeline, cores, settings, build_following(proposing, vocabulary, None))
        for _ in range(settings.replicas)
    ]
    scheduler, model = _make_cores(settings, pairs)
    engine = Engine(timeline, cores, settings, scheduler, Links(proposers))
    worker = Worker(timeline, cores, settings, model)
    requests = Requests(pairs, settings.requests)
    load = Load(timeline, cores, settings, requests, engine, proposers)
    engine.run_plan = worker.run
    engine.deliver = lambda outputs: load.ask(partial(load.read, outputs))
    worker.answer = lambda response: engine.ask(partial(engine.take_result, response))
    load.ask(load.begin)
    timeline.run()
    p50, p99 = np.quantile(engine.wait_seconds or [0.0], [0.5, 0.99]).tolist()
    report = make_report(settings, requests.totals, 1000 * p50, 1000 * p99)
    return report | {"virtual": True, "cores": settings.cores}


def _make_cores(settings: WindowsSettings, pairs: Sequence[Pair]) -> tuple[Scheduler, TruthWorker]:
    """Returns the scheduler's and the worker's, set up as the real services are."""
    simulated = SimulatedSettings(**settings.describe_worker())
    message = describe_model(make_model(simulated), simulated)
    scheduling = SchedulerSettings(
        max_plans_in_flight=settings.depth, max_num_waiting=settings.concurrency
    )
    description = describe_worker(message, scheduling)
    scheduler = Scheduler(
        description.config, description.costs, description.drafter_us, description.key_costs
    )
    return scheduler, TruthWorker([list(pair.truth) for pair in pairs], message)
