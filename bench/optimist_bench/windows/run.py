"""A run in virtual time: the requests, who sends them, and the report."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from optimist.scheduler.v1 import scheduler_pb2
from optimist_bench.harness.pair import Pair, load_vocabulary
from optimist_bench.harness.simulated_service import (
    SimulatedSettings,
    describe_model,
    find_step_us,
    make_model,
)
from optimist_bench.harness.truth_worker import TruthWorker
from optimist_bench.harness.virtual.proposing import Links, Proposer, make_proposer
from optimist_bench.harness.virtual.scheduling import Engine
from optimist_bench.harness.virtual.timeline import Cores, Service, Timeline
from optimist_bench.harness.virtual.worker import Worker
from optimist_bench.windows.report import Costs, Progress, Totals, make_report
from optimist_bench.windows.settings import WindowsSettings
from optimist_scheduler.core.base.values import StepOutputs
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker
from optimist_scheduler.workers.translate import finished_message


class Requests:
    """Pairs in turn as requests with handles from 1 on; the first token of a prompt is the pair's
    number."""

    def __init__(self, pairs: Sequence[Pair], number: int) -> None:
        """Takes the pairs, and how many requests there are in all."""
        self._pairs, self._num_left = pairs, number
        self._num_begun = 0
        self._texts: dict[int, list[int]] = {}
        """Output so far, by handle, of the requests that run."""
        self.totals = Totals()

    @property
    def are_left(self) -> bool:
        """Whether a request has not begun."""
        return self._num_left > 0

    @property
    def run(self) -> bool:
        """Whether a request has begun and not ended."""
        return bool(self._texts)

    def begin(self) -> tuple[int, int, Pair]:
        """Begins the next request; returns its handle, its pair's number and the pair."""
        self._num_left -= 1
        self._num_begun += 1
        self._texts[self._num_begun] = []
        number = (self._num_begun - 1) % len(self._pairs)
        return self._num_begun, number, self._pairs[number]

    def take(self, handles: Sequence[int], counts: Sequence[int], token_ids: Sequence[int]) -> None:
        """Takes new tokens: those of each handle are as many as its count, one after the other."""
        progress, start = self.totals.progress, 0
        progress.num_tokens += len(token_ids)
        progress.num_rows += len(handles)
        for handle, count in zip(handles, counts, strict=True):
            self._texts[handle] += token_ids[start : start + count]
            start += count

    def end(self, handle: int, finished: scheduler_pb2.Finished) -> None:
        """Ends a request."""
        truth = self._pairs[(handle - 1) % len(self._pairs)].truth
        self.totals.take(self._texts.pop(handle), truth, finished)

    def measure(self, seconds: float, stats: scheduler_pb2.Stats, costs: Costs) -> Progress:
        """Returns what has come out, in so many seconds and by the scheduler's figures."""
        return replace(self.totals.progress, seconds=seconds, stats=stats, costs=costs)


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
    vocabulary = load_vocabulary(tokenizer)
    proposers = [
        make_proposer(timeline, cores, settings, vocabulary, settings.algorithm)
        for _ in range(settings.replicas)
    ]
    scheduler, model = _make_cores(settings, pairs)
    engine = Engine(timeline, cores, settings, scheduler, Links(proposers))
    simulated = SimulatedSettings(**settings.describe_worker())
    worker = Worker(timeline, cores, settings, model, partial(find_step_us, simulated))
    requests = Requests(pairs, settings.requests)
    load = Load(timeline, cores, settings, requests, engine, proposers)
    engine.run_plan = worker.run
    engine.deliver = lambda outputs: load.ask(partial(load.read, outputs))
    worker.answer = lambda response: engine.ask(partial(engine.take_result, response))
    load.ask(load.begin)
    timeline.run()
    p50, p99 = np.quantile(engine.wait_seconds or [0.0], [0.5, 0.99]).tolist()
    return make_report(settings, requests.totals, 1000 * p50, 1000 * p99)


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
