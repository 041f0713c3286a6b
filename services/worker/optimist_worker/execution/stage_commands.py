"""What the first stage has the others do: the calls of its runner, in its own order.

All stages prepare and settle plans alike, so their states agree wherever it matters: plans on
their way at the same time have no row in common. The last stage settles a plan as soon as it has
judged it, all others when the first one does.
"""

from collections import deque
from enum import IntEnum

from optimist.worker.v1 import worker_pb2
from optimist_worker.core.plan import Plan, PlanError, StepResult
from optimist_worker.execution.codec import Limits, decode_plan
from optimist_worker.execution.digest import DIGEST_BYTES, digest
from optimist_worker.execution.group import GroupError
from optimist_worker.execution.plan_message import write_plan
from optimist_worker.execution.stage import Stage, StagedStep
from optimist_worker.execution.stage_verdict import StageVerdict, read_verdict, write_verdict
from optimist_worker.runner.runner import LaunchedPlan, Runner


class Command(IntEnum):
    """The first byte of a command."""

    END = 0
    RELEASE_ALL = 1
    LAUNCH = 2
    """Behind it a plan as an ExecuteRequest."""
    COLLECT = 3
    """Behind it the digest of what the first stage has collected, and the verdict."""


class CommandedStages:
    """The other stages, as the first one commands them."""

    def __init__(self, stage: Stage) -> None:
        """Commands the stages behind the first."""
        self._stage = stage

    def release_all(self) -> None:
        """They free every slot."""
        self._tell_all(Command.RELEASE_ALL)

    def launch(self, plan: Plan) -> None:
        """They do their parts of a plan."""
        self._tell_all(Command.LAUNCH, write_plan(plan).SerializeToString())

    def collect(self, result: StepResult) -> None:
        """They settle the oldest plan and compare what came of it."""
        link, expected = self._stage.link, digest(result)
        verdict = self._stage.take_verdict_bytes()
        for stage in range(1, link.num_stages):
            # The last one has made it.
            told = b"" if stage == link.num_stages - 1 else verdict
            link.command(stage, bytes([Command.COLLECT]) + expected + told)
        if verdict:
            link.forget_plan()

    def end(self) -> None:
        """They end."""
        self._tell_all(Command.END)
        if self._stage.inbox is not None:
            self._stage.inbox.close()
        self._stage.link.forget_all()

    def _tell_all(self, command: Command, payload: bytes = b"") -> None:
        link = self._stage.link
        for stage in range(1, link.num_stages):
            link.command(stage, bytes([command]) + payload)


def obey_first_stage(stage: Stage, runner: Runner, limits: Limits, hang_seconds: float) -> None:
    """Does what the first stage says until it says that it ends.

    Args:
        stage: This process's, which is not the first.
        runner: On it.
        limits: What plans keep to.
        hang_seconds: How long the first stage may take to settle a plan.

    Raises:
        GroupError: A stage is gone or came to something else.
    """
    here = (_LastStage if stage.place.is_last else _MiddleStage)(stage, runner)
    while True:
        command = stage.link.next_command(hang_seconds if here.is_at_work else None)
        kind, payload = Command(command[0]), command[1:]
        if kind is Command.END:
            if stage.place.is_last:
                stage.link.tell_verdict(b"")
                stage.link.forget_all()
            return
        if kind is Command.RELEASE_ALL:
            runner.release_all()
        elif kind is Command.LAUNCH:
            request = worker_pb2.ExecuteRequest.FromString(payload)
            try:
                launched = runner.launch(decode_plan(request, limits))
            except PlanError:
                # The first stage has met it too, tells the scheduler and collects nothing.
                continue
            here.go_on(launched)
        else:
            here.collect(payload[:DIGEST_BYTES], payload[DIGEST_BYTES:])


class _MiddleStage:
    """Settles plans when it is told what came of them."""

    def __init__(self, stage: Stage, runner: Runner) -> None:
        self._stage, self._runner = stage, runner
        self._running: deque[LaunchedPlan] = deque()

    @property
    def is_at_work(self) -> bool:
        """Whether the first stage has to say soon how a plan went."""
        return bool(self._running)

    def go_on(self, launched: LaunchedPlan) -> None:
        self._running.append(launched)

    def collect(self, expected: bytes, verdict: bytes) -> None:
        launched = self._running.popleft()
        if verdict:
            self._stage.tell(staged_step(launched), read_verdict(verdict))
            self._stage.link.forget_plan()
        _compare(self._runner.collect(launched), expected)


class _LastStage:
    """Says what comes of plans."""

    def __init__(self, stage: Stage, runner: Runner) -> None:
        self._stage, self._runner = stage, runner
        self._results: deque[StepResult] = deque()

    @property
    def is_at_work(self) -> bool:
        """Whether the first stage has to say soon how a plan went."""
        return bool(self._results)

    def go_on(self, launched: LaunchedPlan) -> None:
        step, told = launched.step, None
        if isinstance(step, StagedStep) and step.has_pass:
            told = step.told
        has_grammar = launched.has_grammar
        if told is not None and not has_grammar:
            self._tell(told)
        rows = dict(launched.rows)
        self._results.append(self._runner.collect(launched))
        if told is not None and has_grammar:
            # Whether a grammar can be followed further is known when the tokens are committed.
            faults = {slot: held.error for slot, held in rows.items() if held.has_grammar}
            told.faults = {slot: error for slot, error in faults.items() if error is not None}
            self._tell(told)

    def collect(self, expected: bytes, _: bytes) -> None:
        _compare(self._results.popleft(), expected)

    def _tell(self, told: StageVerdict) -> None:
        self._stage.link.tell_verdict(write_verdict(told))


def staged_step(launched: LaunchedPlan) -> StagedStep:
    """Returns the step of a plan that runs through stages; raises GroupError if there is none."""
    if not isinstance(launched.step, StagedStep):
        raise GroupError(f"plan {launched.plan.sequence} has a pass at another stage, but not here")
    return launched.step


def _compare(result: StepResult, expected: bytes) -> None:
    if digest(result) != expected:
        reasons = "; ".join(result.errors.values())[:300]
        raise GroupError(
            f"plan {result.sequence} came to something else than at the first stage"
            + (f": {reasons}" if reasons else "")
        )
