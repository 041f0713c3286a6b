"""What rank 0 has the other ranks do: every call of its runner, in the same order.

So all ranks go through the same states. Tokens need not be exchanged: all have the same logits,
and what is chosen of them follows from seeds and positions.
"""

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from functools import partial

from optimist.worker.v1 import worker_pb2
from optimist_worker.core.plan import Plan, PlanError, StepResult, plan_repeat
from optimist_worker.execution.codec import Limits, decode_plan
from optimist_worker.execution.digest import digest
from optimist_worker.execution.ending import end_process
from optimist_worker.execution.group import Group, GroupError
from optimist_worker.execution.plan_message import write_plan
from optimist_worker.runner.runner import LaunchedPlan, Runner


class Command(IntEnum):
    """The first byte of a command."""

    END = 0
    RELEASE_ALL = 1
    LAUNCH = 2
    """Behind it a plan as an ExecuteRequest."""
    REPEAT = 3
    """Launches the plan that was collected last once more."""
    COLLECT = 4
    """Behind it the digest of what rank 0 has collected."""


class CommandedRanks:
    """The other ranks, as rank 0 commands them; if they are gone, the process ends."""

    def __init__(self, group: Group) -> None:
        """Commands the other ranks of a group."""
        self._group = group

    def release_all(self) -> None:
        """They free every slot."""
        self._send(Command.RELEASE_ALL)

    def launch(self, plan: Plan) -> None:
        """They start a plan."""
        if plan.repeat:
            self._send(Command.REPEAT)
        else:
            self._send(Command.LAUNCH, write_plan(plan).SerializeToString())

    def collect(self, result: StepResult) -> None:
        """They wait for the oldest plan and compare what came of it."""
        self._send(Command.COLLECT, digest(result))
        if result.errors:
            # A pass that has failed because a rank is gone must not be told as the requests' fault.
            self._or_end(self._group.wait_for_all)

    def end(self) -> None:
        """They end."""
        self._send(Command.END)

    def _send(self, command: Command, payload: bytes = b"") -> None:
        self._or_end(partial(self._group.broadcast, bytes([command]) + payload))

    def _or_end(self, speak: Callable[[], None]) -> None:
        try:
            speak()
        except GroupError as error:
            end_process(f"the other ranks cannot be reached: {error}")


def obey_leader(group: Group, runner: Runner, limits: Limits, hang_seconds: float) -> None:
    """Does what rank 0 says until it says that it ends.

    Args:
        group: The ranks.
        runner: This rank's.
        limits: What plans keep to.
        hang_seconds: How long rank 0 may take over a step.

    Raises:
        GroupError: Rank 0 is gone or came to something else.
    """
    rank = _Rank(group, runner, limits)
    while True:
        command = group.receive(hang_seconds if rank.is_at_work else None)
        if command[0] == Command.END:
            return
        rank.obey(Command(command[0]), command[1:])


class _Rank:
    """The plans of one rank that have been launched and not been collected."""

    def __init__(self, group: Group, runner: Runner, limits: Limits) -> None:
        self._group, self._runner, self._limits = group, runner, limits
        self._running: deque[LaunchedPlan] = deque()
        self._last: tuple[Plan, StepResult] | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether rank 0 has to say soon how a plan went."""
        return bool(self._running)

    def obey(self, command: Command, payload: bytes) -> None:
        if command is Command.RELEASE_ALL:
            self._runner.release_all()
        elif command is Command.LAUNCH:
            request = worker_pb2.ExecuteRequest.FromString(payload)
            self._launch(decode_plan(request, self._limits))
        elif command is Command.REPEAT:
            again = None if self._last is None else plan_repeat(*self._last)
            if again is None:
                raise GroupError("rank 0 repeats a plan that this rank cannot repeat")
            self._launch(again)
        else:
            self._collect(payload)

    def _launch(self, plan: Plan) -> None:
        try:
            self._running.append(self._runner.launch(plan))
        except PlanError:
            # Rank 0 has met it too, tells the scheduler and collects nothing.
            return

    def _collect(self, expected: bytes) -> None:
        launched = self._running.popleft()
        result = self._runner.collect(launched)
        if digest(result) != expected:
            reasons = "; ".join(result.errors.values())[:300]
            raise GroupError(
                f"plan {result.sequence} came to something else than on rank 0"
                + (f": {reasons}" if reasons else "")
            )
        if result.errors:
            self._group.wait_for_all()
        self._last = launched.plan, result
