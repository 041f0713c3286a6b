"""Runs the plans of one stream on the model's thread, and the last one again while it may."""

import time

from optimist_worker.core.plan import Plan, StepResult, plan_repeat
from optimist_worker.execution.codec import Limits, decode_plan
from optimist_worker.runner.runner import Runner
from optimist_worker.service.launched_plans import LaunchedPlans
from optimist_worker.service.pipeline_loop import PipelineExecution
from optimist_worker.service.request_spans import RequestSpans
from optimist_worker.service.stream import PlanStream

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
    plans, stage = LaunchedPlans(runner, stream, spans), runner.engine.stage
    try:
        runner.release_all()
        if stage is not None:
            PipelineExecution(plans, limits, stream, stage).run()
        else:
            most = MOST_LAUNCHED if runner.engine.runs_by_itself else 1
            _Execution(plans, limits, stream, most).run()
    finally:
        spans.end_all()
        stream.finish()


class _Execution:
    """The plans of one stream on a device of its own."""

    def __init__(self, plans: LaunchedPlans, limits: Limits, stream: PlanStream, most: int) -> None:
        self._plans, self._limits, self._stream, self._most = plans, limits, stream, most

    def run(self) -> None:
        """Launches and answers until the stream ends."""
        try:
            while self._launch_next():
                while self._plans.running and not self._may_launch:
                    self._repeat(*self._plans.finish_oldest())
        finally:
            while self._plans.running:
                self._plans.finish_oldest()

    @property
    def _may_launch(self) -> bool:
        """Whether another plan is there to be launched behind those that run."""
        running = self._plans.running
        return (
            not self._stream.is_idle
            and len(running) < self._most
            and not running[-1].launched.has_grammar
        )

    def _launch_next(self) -> bool:
        """Launches the next plan, waiting for one; tells whether there was one."""
        must_wait = self._stream.is_idle and self._plans.end_ns > 0
        before = time.perf_counter_ns()
        request = self._stream.take()
        if request is None:
            return False
        start = time.perf_counter_ns()
        plan = decode_plan(request, self._limits)
        self._plans.begin(request)
        self._plans.launch(plan, start, start - before if must_wait else 0)
        return True

    def _repeat(self, plan: Plan, result: StepResult) -> None:
        """Runs a plan again after its result, if it may be and nothing newer came."""
        if not self._plans.running and self._stream.may_repeat:
            again = plan_repeat(plan, result)
            if again is not None:
                self._plans.launch(again, self._plans.end_ns, 0)
