"""Runs the plans of one stream on the model's thread, and the last one again while it may."""

import logging
import time

from optimist_worker.codec import Limits, decode_plan, encode_result
from optimist_worker.core.plan import Plan, StepResult, plan_repeat
from optimist_worker.metrics import observe_step
from optimist_worker.runner import Runner
from optimist_worker.stream import PlanStream

logger = logging.getLogger(__name__)


def run_plans(runner: Runner, limits: Limits, stream: PlanStream) -> None:
    """Runs plans, from an empty worker on, until the stream ends; answers every run at once.

    Raises:
        PlanError: A plan is malformed; those before it were answered.
    """
    try:
        runner.release_all()
        is_first = True
        while True:
            must_wait = stream.is_idle and not is_first
            before = time.perf_counter_ns()
            request = stream.take()
            if request is None:
                return
            start = time.perf_counter_ns()
            plan = decode_plan(request, limits)
            _run_lease(runner, stream, plan, start, start - before if must_wait else 0)
            is_first = False
    finally:
        stream.finish()


def _run_lease(runner: Runner, stream: PlanStream, plan: Plan, start: int, idle_ns: int) -> None:
    """Runs a plan, and runs it again until a newer one is there or nothing is left to do."""
    while True:
        result = runner.execute(plan)
        step_ns = time.perf_counter_ns() - start
        stream.answer(encode_result(result, step_ns, idle_ns))
        observe_step(result, step_ns / 1e9, idle_ns / 1e9)
        _log_errors(result)
        again = plan_repeat(plan, result)
        if again is None or not stream.may_repeat:
            return
        plan, start, idle_ns = again, time.perf_counter_ns(), 0


def _log_errors(result: StepResult) -> None:
    for slot, error in result.errors.items():
        logger.warning("plan %d, slot %d: %s", result.sequence, slot, error)
