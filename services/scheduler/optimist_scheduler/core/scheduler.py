"""The scheduler: commands and results in, plans and outputs out."""

from optimist_scheduler.core.apply import apply_schedule
from optimist_scheduler.core.limits import Limits
from optimist_scheduler.core.output import Finished, FinishReason, Output, RejectionError
from optimist_scheduler.core.plan import Plan, StepResult
from optimist_scheduler.core.requests import NO_SLOT, Request
from optimist_scheduler.core.schedule import ScheduleDecision, compute_schedule
from optimist_scheduler.core.settle import finish, settle
from optimist_scheduler.core.state import SchedulerState
from optimist_scheduler.core.validate import NewRequest, build_request, find_length_fault
from optimist_scheduler.core.window import Window, is_valid

MAX_LOST_PLANS = 5
"""A request that ends the worker each time must not do so for ever."""


class Scheduler:
    """Continuous batching of the requests of one worker."""

    def __init__(self, limits: Limits) -> None:
        self._state = SchedulerState(limits)
        self._requests: dict[str, Request] = {}

    @property
    def limits(self) -> Limits:
        """The bounds of every schedule."""
        return self._state.limits

    @property
    def num_running(self) -> int:
        """Requests with a slot."""
        return len(self._state.running)

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return len(self._state.waiting)

    @property
    def num_free_blocks(self) -> int:
        """KV blocks that no request owns."""
        return self._state.blocks.num_free

    def add(self, new: NewRequest) -> None:
        """Lets a request wait for its turn.

        Raises:
            RejectionError: It can never run, its id is taken, or too many wait.
        """
        if new.request_id in self._requests:
            raise RejectionError(FinishReason.REFUSED, "request_id: is in use by another request")
        request = build_request(new, self.limits)
        if self.num_waiting >= self.limits.max_num_waiting:
            raise RejectionError(
                FinishReason.OVERLOADED, f"{self.num_waiting} requests wait already"
            )
        self._requests[new.request_id] = request
        self._state.waiting.append(request)

    def abort(self, request_id: str) -> Finished | None:
        """Ends a request without an output.

        Returns:
            Its account; None if it is unknown or has ended.
        """
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        self._state.end(request)
        return finish(request, FinishReason.ABORTED, "")

    def set_window(self, request_id: str, window: Window) -> bool:
        """Takes what a request is expected to go on with.

        Returns:
            False if the request has ended, the window is older than the last one, or it cannot be
            of the request's prediction; then nothing is changed.
        """
        request = self._requests.get(request_id)
        if request is None or (request.window and window.epoch < request.window.epoch):
            return False
        if not is_valid(window, request.num_predicted_tokens, self.limits.vocab_size):
            return False
        request.window = window
        if request.slot != NO_SLOT:
            self._state.table.set_window(request.slot, request)
            self._state.unsent_windows[request.slot] = None
        return True

    def find_unaligned(self) -> list[str]:
        """Returns the requests that have a prediction and no window to draft from."""
        table = self._state.table
        unaligned = [
            request
            for request in map(table.request, self._state.running)
            if table.window_end[request.slot] <= len(request.token_ids)
        ]
        unaligned += [request for request in self._state.waiting if request.window is None]
        return [request.request_id for request in unaligned if request.num_predicted_tokens]

    def compute_schedule(self) -> ScheduleDecision:
        """Decides what runs next; changes nothing."""
        return compute_schedule(self._state.view())

    def apply_schedule(self, decision: ScheduleDecision) -> Plan | None:
        """Carries out a decision that was computed from the present state.

        Returns:
            The plan, which is in flight until `settle`; None if no row runs.

        Raises:
            RuntimeError: A plan is in flight.
        """
        if self._state.in_flight is not None:
            raise RuntimeError(f"plan {self._state.in_flight.sequence} is in flight")
        return apply_schedule(self._state, decision)

    def schedule(self) -> Plan | None:
        """Computes and applies."""
        return self.apply_schedule(self.compute_schedule())

    def settle(self, result: StepResult) -> list[Output]:
        """Takes the result of the plan in flight; raises ResultError if it does not fit."""
        outputs = settle(self._state, result)
        for output in outputs:
            if output.finished is not None:
                del self._requests[output.request_id]
        return outputs

    def restart(self, limits: Limits) -> list[Output]:
        """Begins anew with a worker that knows nothing.

        What ran waits again, ahead of what waited, and is computed again from its verified tokens.

        Returns:
            The ends of requests that do not fit the new limits.
        """
        old = self._state
        if old.in_flight is not None:
            for slot in old.in_flight.slots.tolist():
                old.table.request(slot).num_lost_plans += 1
        self._state = SchedulerState(limits)
        self._state.num_plans = old.num_plans
        outputs: list[Output] = []
        for request in [*map(old.table.request, old.running), *old.waiting]:
            request.slot = NO_SLOT
            fault = _find_restart_fault(request, limits)
            if fault is None:
                request.max_length = min(request.max_length, limits.max_length)
                self._state.waiting.append(request)
            else:
                del self._requests[request.request_id]
                finished = finish(request, FinishReason.ERROR, fault)
                outputs.append(Output(request.request_id, [], 0, finished))
        return outputs

    def check_integrity(self) -> None:
        """Raises AssertionError if the state contradicts itself."""
        self._state.check_integrity()


def _find_restart_fault(request: Request, limits: Limits) -> str | None:
    """Returns why a request cannot go on with a new worker; None if it can."""
    if request.num_lost_plans >= MAX_LOST_PLANS:
        return f"the worker was lost {request.num_lost_plans} times while it worked on this request"
    fault = find_length_fault(len(request.token_ids), limits)
    return fault and f"the worker came back smaller: {fault}"
