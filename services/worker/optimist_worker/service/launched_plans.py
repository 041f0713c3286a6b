"""The plans of one stream that have been launched and not been answered, oldest first."""

import logging
import time
from collections import deque
from dataclasses import dataclass

from optimist.worker.v1 import worker_pb2
from optimist_worker.core.plan import Plan, StepResult
from optimist_worker.execution.codec import encode_result
from optimist_worker.runner.runner import LaunchedPlan, Runner
from optimist_worker.service.metrics import observe_step
from optimist_worker.service.request_spans import RequestSpans
from optimist_worker.service.stream import PlanStream

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PlanRun:
    """One run of a plan."""

    launched: LaunchedPlan
    start_ns: int
    idle_ns: int


class LaunchedPlans:
    """Launches plans and answers them in turn."""

    def __init__(self, runner: Runner, stream: PlanStream, spans: RequestSpans) -> None:
        """Begins without any."""
        self.running: deque[PlanRun] = deque()
        self.end_ns = 0
        """When the last run was over; 0 before the first."""
        self._runner, self._stream, self._spans = runner, stream, spans

    def begin(self, request: worker_pb2.ExecuteRequest) -> None:
        """Notes that a request of the stream is at hand."""
        self._spans.begin(request)

    def launch(self, plan: Plan, start_ns: int, idle_ns: int) -> None:
        """Launches a plan.

        Args:
            plan: The plan.
            start_ns: When it could have been launched.
            idle_ns: How long nothing was there to launch before.
        """
        self.running.append(PlanRun(self._runner.launch(plan), start_ns, idle_ns))

    def finish_oldest(self) -> tuple[Plan, StepResult]:
        """Waits for the oldest run and answers it."""
        run = self.running.popleft()
        result = self._runner.collect(run.launched)
        now = time.perf_counter_ns()
        step_ns = now - max(run.start_ns, self.end_ns)
        self.end_ns = now
        self._stream.answer(encode_result(result, step_ns, run.idle_ns))
        self._spans.note(result, step_ns)
        observe_step(result, step_ns / 1e9, run.idle_ns / 1e9)
        _log_errors(result)
        return run.launched.plan, result


def _log_errors(result: StepResult) -> None:
    for slot, error in result.errors.items():
        logger.warning("plan %d, slot %d: %s", result.sequence, slot, error)
