"""Runs the plans of one stream on the model's thread, and the last one again while it may."""

import logging
import time
from collections import deque
from dataclasses import dataclass

from optimist_worker.core.plan import Plan, PlanError, StepResult, plan_repeat
from optimist_worker.execution.codec import Limits, decode_plan, encode_result
from optimist_worker.execution.group import end_process
from optimist_worker.execution.stage_link import VerdictInbox
from optimist_worker.runner.runner import LaunchedPlan, Runner
from optimist_worker.service.metrics import observe_step
from optimist_worker.service.request_spans import RequestSpans
from optimist_worker.service.stream import PlanStream, Wake

logger = logging.getLogger(__name__)


def run_plans(
    runner: Runner, limits: Limits, stream: PlanStream, spans: RequestSpans | None = None
) -> None:
    """Runs plans, from an empty worker on, until the stream ends; answers every run at once.

    Raises:
        PlanError: A plan is malformed; those before it were answered.
    """
    spans = spans or RequestSpans()
    inbox = runner.engine.executor.inbox
    try:
        runner.release_all()
        if inbox is None:
            _PlanLoop(runner, limits, stream, spans).run()
        else:
            _PipelineLoop(runner, limits, stream, spans, inbox).run()
    finally:
        spans.end_all()
        stream.finish()


@dataclass(slots=True)
class _PlanRun:
    """One run of a plan."""

    launched: LaunchedPlan
    start_ns: int
    idle_ns: int


class _PlanLoop:
    """Launches plans and answers them in turn: those of one stream, oldest first."""

    def __init__(
        self, runner: Runner, limits: Limits, stream: PlanStream, spans: RequestSpans
    ) -> None:
        self._runner, self._limits, self._stream, self._spans = runner, limits, stream, spans
        self._running: deque[_PlanRun] = deque()
        """Launched and not answered."""
        self._most = runner.engine.executor.most_plans
        self._end_ns = 0
        """When the last run was over; 0 before the first."""

    def run(self) -> None:
        """Launches and answers until the stream ends."""
        try:
            while self._launch_next():
                self._finish_some()
        finally:
            self._finish_all()

    def _finish_some(self) -> None:
        """Finishes runs until another plan may be launched or waited for."""
        while self._running and not self._may_launch:
            self._repeat(*self._finish_oldest())

    @property
    def _may_launch(self) -> bool:
        """Whether another plan is there to be launched after those that run."""
        return (
            not self._stream.is_idle
            and len(self._running) < self._most
            and not self._running[-1].launched.has_grammar
        )

    def _launch_next(self) -> bool:
        """Launches the next plan, waiting for one; returns whether the stream goes on."""
        must_wait = self._stream.is_idle and self._end_ns > 0 and not self._running
        before = time.perf_counter_ns()
        request = self._stream.take(is_at_work=bool(self._running))
        if isinstance(request, Wake):
            return True
        if request is None:
            return False
        start = time.perf_counter_ns()
        plan = decode_plan(request, self._limits)
        self._spans.begin(request)
        self._make_way(plan)
        self._launch(plan, start, start - before if must_wait else 0)
        return True

    def _make_way(self, plan: Plan) -> None:
        """Finishes what has to be over before a plan is launched."""

    def _launch(self, plan: Plan, start_ns: int, idle_ns: int) -> None:
        """Launches a plan.

        Args:
            plan: The plan.
            start_ns: When it could have been launched.
            idle_ns: How long nothing was there to launch before.
        """
        self._running.append(_PlanRun(self._runner.launch(plan), start_ns, idle_ns))

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
        for slot, error in result.errors.items():
            logger.warning("plan %d, slot %d: %s", result.sequence, slot, error)
        return run.launched.plan, result

    def _finish_all(self) -> None:
        while self._running:
            self._finish_oldest()

    def _repeat(self, plan: Plan, result: StepResult) -> None:
        """Runs a plan again after its result, if it may be and nothing newer came."""
        if not self._running and self._stream.may_repeat:
            again = plan_repeat(plan, result)
            if again is not None:
                self._launch(again, self._end_ns, 0)


class _PipelineLoop(_PlanLoop):
    """Launches each plan at the first stage as soon as it is there, whatever others are in flight.

    Plans whose rows, releases or admissions touch a slot of a plan in flight wait for it. So a
    scheduler that does not know of stages gets right results, one plan after the other. Plans are
    not repeated: the next one is mostly there.
    """

    def __init__(
        self,
        runner: Runner,
        limits: Limits,
        stream: PlanStream,
        spans: RequestSpans,
        inbox: VerdictInbox,
    ) -> None:
        super().__init__(runner, limits, stream, spans)
        self._inbox = inbox

    def run(self) -> None:
        """Launches and answers until the stream ends."""
        self._inbox.on_arrival(self._stream.wake)
        try:
            super().run()
        except PlanError:
            raise
        except Exception as error:
            # The other stages may be anywhere in a plan by now.
            end_process(f"a plan cannot be led through the stages: {error!r}")
        finally:
            self._inbox.on_arrival(None)

    def _finish_some(self) -> None:
        while self._running and (self._is_oldest_done or len(self._running) >= self._most):
            self._finish_oldest()

    @property
    def _is_oldest_done(self) -> bool:
        step = self._running[0].launched.step
        return step is None or not step.has_pass or not self._inbox.is_empty

    def _make_way(self, plan: Plan) -> None:
        """Finishes the plans that the plan needs a slot of as it will be then.

        New windows are kept for it by the runner.
        """
        touched = {*plan.released_slots, *plan.slots.tolist()}
        touched.update(admission.slot for admission in plan.admissions)
        while any(not touched.isdisjoint(run.launched.rows) for run in self._running):
            self._finish_oldest()
