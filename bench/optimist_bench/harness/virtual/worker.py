"""The worker in virtual time."""

from collections import deque
from collections.abc import Callable
from functools import partial

from optimist.worker.v1 import worker_pb2
from optimist_bench.harness.truth_worker import TruthWorker
from optimist_bench.harness.virtual.settings import VirtualSettings
from optimist_bench.harness.virtual.timeline import Cores, Service, Timeline
from optimist_common.columns import INT32_BYTES

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
