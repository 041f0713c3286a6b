"""The scheduler: commands and results in, plans and outputs out."""

import math
from collections.abc import Sequence

import numpy as np

from optimist_common.scheduler_service.pause_mode import PauseMode
from optimist_scheduler.core.base.values import (
    Ended,
    Finished,
    FinishReason,
    RejectionError,
    SchedulerStats,
    StepOutputs,
)
from optimist_scheduler.core.estimate import Estimate, estimate_speculation
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.ends import find_end, finish, make_end
from optimist_scheduler.core.requests.following import (
    LEAST_GAIN,
    LOOKED_UP_SHARE,
    NOT_FOLLOWED,
    TOKEN,
)
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.request import (
    NewRequest,
    Request,
    build_request,
    find_length_fault,
)
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.results.settle import settle
from optimist_scheduler.core.schedule.apply import apply_schedule, is_worth_sending
from optimist_scheduler.core.schedule.decision import Prepared, ScheduleDecision, compute_schedule
from optimist_scheduler.core.wait import OverloadedError, WaitEstimate, count_prompt_tokens
from optimist_scheduler.core.width.costs import NO_TIMINGS, Timings
from optimist_scheduler.core.windows.window import Window, WindowError

CAUTION = 0.8
"""Part of the longest wait that an estimate may have: waits turn out longer by up to a fifth."""


class Scheduler:
    """Continuous batching of the requests of one worker, some plans ahead of its results."""

    def __init__(self, config: EngineConfig, timings: Timings = NO_TIMINGS) -> None:
        """Begins without requests."""
        self.stats = SchedulerStats()
        self._timings = timings
        self._state = SchedulerState(config, self.stats, timings, num_plans=0)
        self._requests: dict[str, Request] = {}
        self._num_added = 0
        self._prepared = Prepared(self.stats)
        self._pause: PauseMode | None = None
        self._wait: WaitEstimate | None = None
        """What is ahead of a request, as of the next two."""
        self._wait_key: tuple[int, int, tuple[bool, int]] | None = None
        self._wait_running = self._state.running
        self._moved_at = math.inf
        """When a result was settled last, or there was nothing to do; infinite if not known."""
        self._num_results = 0
        """Results that had been settled then."""

    @property
    def config(self) -> EngineConfig:
        """Bounds and policies of every schedule."""
        return self._state.config

    @property
    def num_running(self) -> int:
        """Requests that run."""
        return len(self._state.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait, or will when the plans in flight have settled."""
        return len(self._requests) - self.num_running

    @property
    def num_free_blocks(self) -> int:
        """KV blocks that no request holds, cached ones included."""
        return self._state.blocks.num_free

    @property
    def num_plans_in_flight(self) -> int:
        """Plans without a result."""
        return len(self._state.in_flight)

    @property
    def can_send(self) -> bool:
        """Whether the worker may be sent one more plan."""
        return self.num_plans_in_flight < self.config.plan_depth

    @property
    def is_paused(self) -> bool:
        """Whether a pause is in force."""
        return self._pause is not None

    @property
    def is_quiet(self) -> bool:
        """Whether a pause is in force and nothing runs any more."""
        if self._pause is None or self._state.in_flight:
            return False
        return self._pause is PauseMode.KEEP or self.num_running == 0

    def has(self, request_id: str) -> bool:
        """Returns whether a request runs or waits here."""
        return request_id in self._requests

    def add(self, new: NewRequest, now: float, arrival: int | None = None) -> None:
        """Lets a request wait for its turn.

        `arrival` is its position among all that came, where several schedulers share them; by
        default it comes last. Raises RejectionError if it can never run or its id is taken,
        OverloadedError if too many wait or it would wait for too long.
        """
        if new.request_id in self._requests:
            raise RejectionError(FinishReason.REFUSED, "request_id: is in use by another request")
        predicted_gain = self._state.table.predicted_gain.find_first()
        request = build_request(new, self.config, predicted_gain)
        arrival = self._num_added + 1 if arrival is None else arrival
        request.arrival, request.arrival_time = arrival, now
        if not self._requests or math.isinf(self._moved_at):
            self._moved_at = now
        self._require_room(request, now)
        self._num_added = arrival
        self._requests[new.request_id] = request
        self._state.wait(request)

    def _require_room(self, request: Request, now: float) -> None:
        """Raises OverloadedError if too many wait, or the request would wait for too long.

        One that has output, which another scheduler began, is not refused for that.
        """
        num_waiting, longest = self.num_waiting, self.config.max_wait_seconds * CAUTION
        is_full = num_waiting >= self.config.max_num_waiting
        if not is_full and (not longest or request.num_given_tokens or not self._is_busy):
            return
        wait = self._find_wait(request)
        # Nothing has ended for longer than a pass takes: that may go on for as long again.
        stall = 0.0 if self.is_paused else max(now - self._moved_at - wait.full_pass, 0.0)
        seconds = wait.find_seconds(len(request.token_ids)) + stall
        if is_full:
            reason, soonest = f"{num_waiting} requests wait already", seconds / (num_waiting + 1)
        elif seconds > longest:
            reason = f"a request would wait for {seconds:.0f} seconds"
            soonest = seconds - longest
        else:
            return
        raise OverloadedError(reason, soonest, wait.find_turn(request))

    @property
    def _is_busy(self) -> bool:
        """Whether a request that comes may have to wait for more than a pass."""
        state = self._state
        if len(self._requests) > self.num_running or not state.table.num_free_slots:
            return True
        return int(count_prompt_tokens(state).sum()) > self.config.max_num_batched_tokens

    def _find_wait(self, request: Request) -> WaitEstimate:
        """Returns what is ahead of a request; while nothing moves, the same as before."""
        state, urgency = self._state, request.order[:2]
        key = self.stats.num_results, state.waiting.version, urgency
        if self._wait is None or self._wait_key != key or self._wait_running is not state.running:
            self._wait, self._wait_key = WaitEstimate(state, request), key
            self._wait_running = state.running
        return self._wait

    def abort(self, request_id: str) -> Finished | None:
        """Ends a request without an output; returns its account, None if it is unknown."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        ended = finish(self._state, request, FinishReason.ABORTED)
        self._note_answer(request, ended)
        return ended.finished

    def set_priority(self, request_id: str, priority: int) -> bool:
        """Changes how urgent a request is; returns False if it is unknown or has ended."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        if self.config.policy == "priority":
            self._state.set_priority(request, priority)
        return True

    def set_windows(self, windows: Sequence[tuple[str, Window]]) -> list[bool | WindowError]:
        """Takes what requests, by their ids, are expected to go on with.

        Returns of each window False, with nothing changed, if the request has ended, the window is
        older than the last one, it does not go on after the output, or the request rests and it
        promises too little to wake it; the error if it cannot be of the request.
        """
        vocab_size = self.config.vocab_size
        outcomes: list[bool | WindowError] = []
        for request_id, window in windows:
            request = self._requests.get(request_id)
            if request is None or window.base < request.window_base:
                outcomes.append(False)
                continue
            numbers = request.num_predicted_tokens, request.num_prompt_tokens
            if fault := window.check(*numbers, vocab_size):
                outcomes.append(WindowError(fault))
            else:
                outcomes.append(self._state.set_window(request, window))
        self._state.weigh_drafter()
        return outcomes

    def pause(self, mode: PauseMode) -> list[Ended]:
        """Stops planning, at once or when what runs has ended; returns the requests it ended."""
        self._pause = mode
        self._state.takes_requests = False
        self._prepared.discard("pause")
        if mode is not PauseMode.ABORT:
            return []
        requests = sorted(self._requests.values(), key=lambda each: each.arrival)
        self._requests = {}
        return [finish(self._state, each, FinishReason.ABORTED) for each in requests]

    def resume(self) -> None:
        """Goes on after a pause."""
        self._pause, self._moved_at = None, math.inf
        self._state.takes_requests = True

    def find_unaligned(self) -> dict[str, float]:
        """Returns the requests that a step may wait for, and the part of a pass that each loses.

        They have no window to draft from, and gain what a wait costs; none of them rests, or has as
        much from a drafter. While a prompt is computed, the next step may wait at no cost.
        """
        state = self._state
        table, running, drafter = state.table, state.running, self.config.drafter
        is_unaligned = table.is_worth_a_wait(running) & (
            table.window_end[running] <= table.num_tokens[running]
        )
        slots = running[is_unaligned]
        if not len(slots):
            return {}
        gains, otherwise = table.gain[slots] / TOKEN, state.find_drafter_gains(slots)
        if drafter is not None and drafter.is_lookup:
            otherwise = gains * LOOKED_UP_SHARE * (table.num_predicted_tokens[slots] > 0)
        losses = (np.maximum(gains - otherwise, 0.0) / (1 + gains)).tolist()
        return {
            table.request_ids[slot]: loss
            for slot, loss in zip(slots.tolist(), losses, strict=True)
            if loss > 0
        }

    def count_followed(self) -> tuple[int, int]:
        """Returns how many of the running requests are followed and awake, and how many rest."""
        gains = self._state.table.gain[self._state.running]
        num_followed = int(np.count_nonzero(gains != NOT_FOLLOWED))
        num_awake = int(np.count_nonzero(gains >= LEAST_GAIN))
        return num_awake, num_followed - num_awake

    def estimate_speculation(self, answer_ns: float, wait_ns: float) -> list[Estimate]:
        """Returns what speculation is expected to bring at present, by source; changes nothing."""
        return list(estimate_speculation(self._state, answer_ns, wait_ns))

    def compute_schedule(self) -> ScheduleDecision:
        """Decides what runs next; changes nothing."""
        return compute_schedule(self._state)

    def prepare(self) -> None:
        """Computes the next decision while the worker computes, and keeps it for `schedule`.

        See `Prepared.keep` for what is not kept.
        """
        if not self.config.enable_optimistic_scheduling or self._prepared.decision is not None:
            return
        if not self._state.in_flight or self._pause is PauseMode.KEEP:
            return
        self._state.decides_ahead = True
        decision = compute_schedule(self._state)
        self._state.decides_ahead = False
        self._prepared.keep(decision)

    def schedule(self, now: float) -> Plan | None:
        """Returns the next plan: as prepared, repaired where something changed, or computed now.

        None if no row can run, or none is likely to profit before the next result is known.
        """
        if not self.can_send or self._pause is PauseMode.KEEP:
            return None
        if self.stats.num_results != self._num_results or not self._state.in_flight:
            self._num_results, self._moved_at = self.stats.num_results, now
        self._state.promote_starved(now)
        self._state.set_apart()
        decision = self._prepared.decision
        if decision is not None:
            if not is_worth_sending(self._state, decision):
                return None
            decision = self._prepared.take(self._state)
        while True:
            if decision is None:
                decision = self.compute_schedule()
                if not is_worth_sending(self._state, decision):
                    if self.config.enable_optimistic_scheduling:
                        self._prepared.keep(decision)
                    return None
            plan = apply_schedule(self._state, decision)
            if plan or self.num_plans_in_flight or len(decision.preempted) == 0:
                return plan
            # All that ran made room for a more urgent request, and nothing else comes to wake us.
            decision = None

    def settle(self, result: StepResult) -> StepOutputs:
        """Takes the worker's next result; raises ResultError if it fits no plan."""
        outputs = settle(self._state, result)
        for ended in outputs.ended:
            self._note_answer(self._requests.pop(ended.request_id), ended)
        return outputs

    def _note_answer(self, request: Request, ended: Ended) -> None:
        """Learns how long answers are; of those that never ran there is nothing to learn."""
        if num_tokens := sum(ended.finished.num_tokens_by_source):
            num_prompt_tokens = request.num_prompt_tokens
            self._state.pace.note_answer(
                num_tokens + request.num_given_tokens, request.max_length - num_prompt_tokens
            )

    def restart(self, config: EngineConfig, timings: Timings) -> list[Ended]:
        """Begins anew with a worker that knows nothing; returns the ends of what does not fit it.

        What ran waits again, in the order in which it came, and is computed again from its
        verified tokens.
        """
        requests = self.evacuate()
        self._timings = timings
        self._begin_anew(config)
        return [ended for request in requests if (ended := self.adopt(request)) is not None]

    def evacuate(self) -> list[Request]:
        """Gives all requests away, the most urgent first: the worker is lost.

        They are computed again from their verified tokens, wherever they are adopted. Plans in
        flight are forgotten.
        """
        self._prepared.discard("worker lost")
        self._requests = {}
        requests = self._state.take_all()
        self._begin_anew(self.config)
        return requests

    def fail(self, reason: str) -> list[Ended]:
        """Ends all requests with an error, and begins anew: what is known of them may be wrong."""
        self._prepared.discard("worker lost")
        requests = sorted(self._requests.values(), key=lambda each: each.arrival)
        ended = [find_end(self._state, each, FinishReason.ERROR, reason) for each in requests]
        self._requests = {}
        self._begin_anew(self.config)
        return ended

    def adopt(self, request: Request) -> Ended | None:
        """Takes a request that was evacuated to its position among those that wait, however many.

        Returns its end if it does not fit this worker, or too many were lost because of it.
        """
        fault = _find_adoption_fault(request, self.config)
        if fault is not None:
            return make_end(request, len(request.token_ids), FinishReason.ERROR, fault)
        request.max_length = min(request.wanted_length, self.config.max_length)
        if not self._requests:
            self._moved_at = math.inf
        self._num_added = max(self._num_added, request.arrival)
        self._requests[request.request_id] = request
        self._state.wait(request)
        if request.suspicion.must_run_alone:
            self._state.waiting.suspects.append(request)
        return None

    def _begin_anew(self, config: EngineConfig) -> None:
        old = self._state
        self._state = SchedulerState(config, self.stats, self._timings, old.num_plans)
        self._state.takes_requests = old.takes_requests
        self._state.pace, self._wait = old.pace, None
        self._state.table.predicted_gain = old.table.predicted_gain


def _find_adoption_fault(request: Request, config: EngineConfig) -> str | None:
    """Returns why a request cannot go on with a worker; None if it can."""
    if request.suspicion.is_proven:
        number, was_alone = request.suspicion.num_losses, request.suspicion.was_alone
        return f"the worker was lost {number} times while it worked on this request" + (
            ", at last on nothing else" if was_alone else ""
        )
    fault = find_length_fault(len(request.token_ids), config)
    return fault and f"the worker was lost, and the next one is smaller: {fault}"
