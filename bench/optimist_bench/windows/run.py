"""A run in virtual time: the requests, who sends them, and the report."""

from collections.abc import Sequence
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
from optimist_bench.windows.settings import WindowsSettings
from optimist_scheduler.core.base.values import StepOutputs
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker
from optimist_scheduler.workers.translate import finished_message


class Load(Service):
    """Who sends the requests, pairs in turn: a new one for each that has ended.

    The first token of a prompt is the pair's number, by which the worker knows what comes out.
    """

    def __init__(
        self,
        timeline: Timeline,
        cores: Cores,
        settings: WindowsSettings,
        pairs: Sequence[Pair],
        engine: Engine,
        proposers: Sequence[Proposer],
    ) -> None:
        super().__init__(timeline, cores)
        self._settings, self._pairs = settings, pairs
        self._engine, self._proposers = engine, proposers
        self._num_begun = self._num_tokens = self._num_rows = 0
        self._texts: dict[int, list[int]] = {}
        """Output so far, by handle, of the requests that run."""
        self._all_right = True
        self._num_passes = self._num_accepted = self._num_rejected = 0
        self._full: dict[str, Any] = {}
        """Figures when the first request ended that no other one followed."""
        self._report: dict[str, Any] = {}

    def begin(self) -> None:
        """Sends the first requests."""
        for _ in range(min(self._settings.concurrency, self._settings.requests)):
            self._add()

    def read(self, outputs: StepOutputs) -> None:
        """Takes the outputs of a step."""
        self.spend(self._settings.load_token_us * len(outputs.token_ids))
        token_ids, start = outputs.token_ids.tolist(), 0
        self._num_tokens += len(token_ids)
        self._num_rows += len(outputs.handles)
        counts = outputs.num_tokens.tolist()
        for handle, count in zip(outputs.handles.tolist(), counts, strict=True):
            self._texts[handle] += token_ids[start : start + count]
            start += count
        for ended in outputs.ended:
            self._end_request(finished_message(ended.handle, ended.finished))
            if self._num_begun < self._settings.requests:
                self._add()
            elif not self._full:
                self._full = self._measure()
        if not self._texts:
            self._report = self._make_report()

    def _end_request(self, finished: scheduler_pb2.Finished) -> None:
        truth = self._pairs[(finished.handle - 1) % len(self._pairs)].truth
        self._all_right &= self._texts.pop(finished.handle) == truth.tolist()
        self._num_passes += finished.num_passes
        self._num_accepted += finished.accepted_prediction_tokens
        self._num_rejected += finished.rejected_prediction_tokens

    def _measure(self) -> dict[str, Any]:
        """Returns what speed, waits and costs are so far."""
        engine, waits, seconds = self._engine, self._engine.waits, self.time / 1e6
        steps = max(engine.num_plans, 1)
        proposing_us = sum(proposer.busy_us for proposer in self._proposers)
        return {
            "seconds": round(seconds, 3),
            "tokens_per_second": round(self._num_tokens / max(seconds, 1e-9), 1),
            "tokens_per_pass": round(self._num_tokens / max(self._num_rows, 1), 4),
            "steps": engine.num_plans,
            "steps_waited_share": round(waits.num_waits / steps, 4),
            "steps_idle_share": round(waits.num_idle / steps, 4),
            "waits_in_vain_share": round(waits.num_late / max(waits.num_waits, 1), 4),
            "windows": engine.num_windows,
            "proposer_us_per_window": round(proposing_us / max(engine.num_windows, 1), 2),
            "scheduler_us_per_row": round(engine.busy_us / max(self._num_rows, 1), 2),
        }

    def _make_report(self) -> dict[str, Any]:
        settings, waits = self._settings, self._engine.waits
        return {
            "algorithm": settings.algorithm,
            "concurrency": settings.concurrency,
            "requests": settings.requests,
            "replicas": settings.replicas,
            "cores": settings.cores,
            "pass_ms": settings.pass_ms,
            "token_us": settings.token_us,
            "depth": settings.depth,
            "wait": settings.wait,
            "all_right": self._all_right,
            "output_tokens": self._num_tokens,
            "passes": self._num_passes,
            **self._measure(),
            "full": self._full,
            "accepted_prediction_tokens": self._num_accepted,
            "rejected_prediction_tokens": self._num_rejected,
            "steps_waited": waits.num_waits,
            "wait_time_share": round(1e6 * waits.seconds / self.time, 5),
        }

    def report(self) -> dict[str, Any]:
        """Returns the report on all requests."""
        waits, seconds = self._engine.waits, self._engine.wait_seconds
        p50, p99 = np.quantile(seconds or [0.0], [0.5, 0.99]).tolist()
        wait_ms = {"p50": p50, "p99": p99, "mean": waits.seconds / max(waits.num_waits, 1)}
        return self._report | {
            "wait_ms": {name: round(1000 * each, 3) for name, each in wait_ms.items()}
        }

    def _add(self) -> None:
        number = self._num_begun % len(self._pairs)
        self._num_begun += 1
        handle, pair = self._num_begun, self._pairs[number]
        self._texts[handle] = []
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
    load = Load(timeline, cores, settings, pairs, engine, proposers)
    engine.run_plan = worker.run
    engine.deliver = lambda outputs: load.ask(partial(load.read, outputs))
    worker.answer = lambda response: engine.ask(partial(engine.take_result, response))
    load.ask(load.begin)
    timeline.run()
    return load.report()


def _make_cores(settings: WindowsSettings, pairs: Sequence[Pair]) -> tuple[Scheduler, TruthWorker]:
    """Returns the scheduler's and the worker's, set up as the real services are."""
    simulated = SimulatedSettings(**settings.describe_worker())
    message = describe_model(make_model(simulated), simulated)
    scheduling = SchedulerSettings(
        max_plans_in_flight=settings.depth, max_num_waiting=settings.concurrency
    )
    description = describe_worker(message, scheduling)
    scheduler = Scheduler(description.config, description.timings)
    return scheduler, TruthWorker([list(pair.truth) for pair in pairs], message)
