"""The plans of one stream on their way through the stages, as the first stage leads them."""

import time

from optimist_worker.core.plan import Plan, PlanError
from optimist_worker.execution.codec import Limits, decode_plan
from optimist_worker.execution.ending import end_process
from optimist_worker.execution.stage import Stage, StagedStep
from optimist_worker.service.launched_plans import LaunchedPlans
from optimist_worker.service.stream import PlanStream, Wake

SPARE_PLANS = 1
"""Plans beyond one per stage, with which the first stage goes on while an answer is on its way."""


class PipelineExecution:
    """Starts each plan at the first stage as soon as it is there, whatever others are on their way.

    Plans whose rows, releases or admissions touch a slot of a plan on its way wait for it. So a
    scheduler that does not know of stages gets right results, one plan after the other. Plans are
    not repeated: the next one is mostly there.
    """

    def __init__(
        self, plans: LaunchedPlans, limits: Limits, stream: PlanStream, stage: Stage
    ) -> None:
        """Leads the plans of a stream."""
        self._plans, self._limits, self._stream, self._stage = plans, limits, stream, stage
        self._most = stage.place.num_stages + SPARE_PLANS

    def run(self) -> None:
        """Launches and answers until the stream ends."""
        inbox = self._stage.inbox
        if inbox is None:
            raise ValueError("only the first stage leads")
        inbox.on_arrival(self._stream.wake)
        try:
            while self._go_on():
                pass
            self._finish_all()
        except PlanError:
            self._finish_all()
            raise
        except Exception as error:
            # The other stages may be anywhere in a plan by now.
            end_process(f"a plan cannot be led through the stages: {error!r}")
        finally:
            inbox.on_arrival(None)

    def _go_on(self) -> bool:
        """Does what there is to do, waiting for something; tells whether the stream goes on."""
        running = self._plans.running
        while running and (self._is_oldest_done or len(running) >= self._most):
            self._plans.finish_oldest()
        must_wait = self._stream.is_idle and self._plans.end_ns > 0 and not running
        before = time.perf_counter_ns()
        request = self._stream.take_or_wake(is_at_work=bool(running))
        if isinstance(request, Wake):
            return True
        if request is None:
            return False
        start = time.perf_counter_ns()
        plan = decode_plan(request, self._limits)
        self._plans.begin(request)
        while self._is_touched(plan):
            self._plans.finish_oldest()
        self._plans.launch(plan, start, start - before if must_wait else 0)
        return True

    def _finish_all(self) -> None:
        while self._plans.running:
            self._plans.finish_oldest()

    @property
    def _is_oldest_done(self) -> bool:
        step = self._plans.running[0].launched.step
        has_pass = isinstance(step, StagedStep) and step.has_pass
        return not has_pass or (self._stage.inbox is not None and not self._stage.inbox.is_empty)

    def _is_touched(self, plan: Plan) -> bool:
        """Tells whether a plan needs a slot as it will be when one on its way is settled.

        New windows are kept for it by the runner.
        """
        if not self._plans.running:
            return False
        touched = {*plan.released_slots, *plan.slots.tolist()}
        touched.update(admission.slot for admission in plan.admissions)
        return any(not touched.isdisjoint(run.launched.rows) for run in self._plans.running)
