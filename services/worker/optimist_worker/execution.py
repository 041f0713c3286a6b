"""Runs the plans of one stream on the model's thread, and the last one again while it may."""

import logging
import time
from collections import deque
from dataclasses import dataclass

from optimist_worker.codec import Limits, decode_plan, encode_result
from optimist_worker.core.plan import Plan, StepResult, plan_repeat
from optimist_worker.metrics import observe_step
from optimist_worker.request_spans import RequestSpans
from optimist_worker.runner import LaunchedPlan, Runner
from optimist_worker.stream import PlanStream

logger = logging.getLogger(__name__)

MOST_LAUNCHED = 2
"""Plans that a device which runs by itself is given: one to run, one to go on with at once."""


def run_plans(
    runner: Runner, limits: Limits, stream: PlanStream, spans: RequestSpans | None = None
) -> None:
    """Runs plans, from an empty worker on, until the stream ends; answers every run at once.

    Raises:
        PlanError: A plan is malformed; those before it were answered.
    """
    spans = spans or RequestSpans()
    try:
        runner.release_all()
        _Execution(runner, limits, stream, spans).run()
    finally:
        spans.end_all()
        stream.finish()


@dataclass(slots=True)
class _Run:
    launched: LaunchedPlan
    start_ns: int
    idle_ns: int


class _Execution:
    """The plans of one stream that have been launched and not been answered."""

    def __init__(
        self, runner: Runner, limits: Limits, stream: PlanStream, spans: RequestSpans
    ) -> None:
        self._runner, self._limits, self._stream, self._spans = runner, limits, stream, spans
        self._most = MOST_LAUNCHED if runner.engine.runs_by_itself else 1
        self._running: deque[_Run] = deque()
        self._end_ns = 0
        """When the last run was over; 0 before the first."""

    def run(self) -> None:
        """Launches and answers until the stream ends."""
        try:
            while self._launch_next():
                while self._running and not self._may_launch:
                    self._repeat(*self._finish_oldest())
        finally:
            while self._running:
                self._finish_oldest()

    @property
    def _may_launch(self) -> bool:
        """Whether another plan is there to be launched behind those that run."""
        return (
            not self._stream.is_idle
            and len(self._running) < self._most
            and not self._running[-1].launched.has_grammar
        )

    def _launch_next(self) -> bool:
        """Launches the next plan, waiting for one; tells whether there was one."""
        must_wait = self._stream.is_idle and self._end_ns > 0
        before = time.perf_counter_ns()
        request = self._stream.take()
        if request is None:
            return False
        start = time.perf_counter_ns()
        plan = decode_plan(request, self._limits)
        self._spans.begin(request)
        self._launch(plan, start, start - before if must_wait else 0)
        return True

    def _launch(self, plan: Plan, start_ns: int, idle_ns: int) -> None:
        self._running.append(_Run(self._runner.launch(plan), start_ns, idle_ns))

    def _finish_oldest(self) -> tuple[Plan, StepResult]:
        """Waits for the oldest run and answers it."""
        run = self._running.popleft()
        result = self._runner.collect(run.launched)
        now = time.perf_counter_ns()
        step_ns = now - max(run.start_ns, self._end_ns)
        self._end_ns = now
        self._stream.answer(encode_result(result, step_ns, run.idle_ns))
        self._spans.note(result, step_ns)
        observe_step(result, step_ns / 1e9, run.idle_ns / 1e9)
        _log_errors(result)
        return run.launched.plan, result

    def _repeat(self, plan: Plan, result: StepResult) -> None:
        """Runs a plan again after its result, if it may be and nothing newer came."""
        if not self._running and self._stream.may_repeat:
            again = plan_repeat(plan, result)
            if again is not None:
                self._launch(again, self._end_ns, 0)


def _log_errors(result: StepResult) -> None:
    for slot, error in result.errors.items():
        logger.warning("plan %d, slot %d: %s", result.sequence, slot, error)
