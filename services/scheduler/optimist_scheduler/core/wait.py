"""How long a request would wait for its turn, and when one that may not wait is to come again.

The queue is gone through as the scheduler would: each request ahead takes the slot that is free
first, and keeps it for as long as its tokens probably take. What a token takes is measured: passes
by their tokens (`CostCurve`), how late they come, and what a row gets in each (`Pace`).
"""

from bisect import bisect_left
from heapq import heapify, heapreplace
from operator import attrgetter

import numpy as np

from optimist_scheduler.core.base.values import FinishReason, FloatArray, Int32Array, RejectionError
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.schedule.rows import gives_way

SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 60.0
"""Between these a client that was refused is to come again; some clients ignore longer ones."""


class Speed:
    """What the tokens of a request take while a number of requests run, in seconds."""

    def __init__(self, state: SchedulerState, num_rows: int) -> None:
        config, pace, costs = state.config, state.pace, state.costs_for(state.running)
        # Each stage of a pipeline has its part of the requests.
        self._num_rows, self._pace = num_rows, pace
        num_fed = round(-(-num_rows // config.num_pipeline_stages) * pace.fed_per_row)
        budget = max(config.max_num_batched_tokens, num_fed + 1)
        plain, full = (costs.cost_of(each) * pace.slowness / 1e9 for each in (num_fed, budget))
        self.full_pass = full
        """A pass that is full of prompts."""
        self.prefill = full / (budget - num_fed)
        """A token of a prompt, in passes that are full of them."""
        self._output = plain / pace.tokens_per_row
        self._prompt = (full - plain) / (budget - num_fed)

    def serve(self, num_prompt_tokens: Int32Array, num_output_tokens: FloatArray) -> FloatArray:
        """Returns for how long requests keep their slots: prompts hold up all [num_requests]."""
        times: FloatArray = num_output_tokens * self._output
        return times + num_prompt_tokens * (self._prompt * self._num_rows)


class OverloadedError(RejectionError):
    """A request for which there is no room now."""

    def __init__(self, reason: str, soonest: float, turn_seconds: float) -> None:
        """Says why; when there is probably room, in seconds; how much the request adds to that."""
        retry_seconds = min(max(soonest, SHORTEST_SECONDS), LONGEST_SECONDS)
        super().__init__(FinishReason.OVERLOADED, reason, retry_seconds)
        self.soonest, self.turn_seconds = soonest, turn_seconds


class WaitEstimate:
    """What is ahead of a request that would come now, as it is when this is made."""

    def __init__(self, state: SchedulerState, request: Request) -> None:
        waiting = state.waiting.requests
        ahead = waiting[: bisect_left(waiting, request.order, key=attrgetter("order"))]
        num_running, slots = len(state.running), state.running
        left = np.array([len(other.token_ids) for other in ahead], np.int32)
        lengths = np.concatenate([state.table.num_tokens[slots], left])
        num_prompt = np.array([each.num_prompt_tokens for each in ahead], np.int32)
        num_prompt = np.concatenate([state.table.num_prompt_tokens[slots], num_prompt])
        longest = np.array([each.max_length for each in ahead], np.int32)
        longest = np.concatenate([state.table.max_length[slots], longest])
        outputs = state.pace.expect_more(lengths - num_prompt, longest - num_prompt)
        self._prompts = np.concatenate([count_prompt_tokens(state), left])
        num_tokens = float(lengths.sum() + outputs.sum())
        num_slots = _count_slots(state, num_running, num_tokens, len(lengths))
        self._state, self._num_slots = state, num_slots
        self._speed = Speed(state, num_slots)
        times = self._speed.serve(self._prompts, outputs)
        if state.config.policy == "priority":
            running = map(state.table.request, slots.tolist())
            times[:num_running] *= [not gives_way(each, request) for each in running]
        free = [*times[:num_running].tolist(), *[0.0] * (num_slots - num_running)]
        heapify(free)
        for time in times[num_running:].tolist():
            heapreplace(free, free[0] + time)
        self._slot_seconds = free[0]

    def find_seconds(self, num_tokens: int) -> float:
        """Returns how long it takes until a prompt of a length is begun."""
        num_before = _count_before(num_tokens, self._prompts)
        return max(float(self._slot_seconds), num_before * float(self._speed.prefill))

    def find_turn(self, request: Request) -> float:
        """Returns by how many seconds a request would lengthen the queue."""
        length = np.array([len(request.token_ids)], np.int32)
        num_prompt = request.num_prompt_tokens
        output = self._state.pace.expect_more(
            length - num_prompt, np.array([request.max_length - num_prompt], np.int32)
        )
        return float(self._speed.serve(length, output)[0]) / self._num_slots

    @property
    def full_pass(self) -> float:
        """What a pass takes that is full of prompts, in seconds."""
        return self._speed.full_pass


def count_prompt_tokens(state: SchedulerState) -> Int32Array:
    """Returns how many known tokens running requests have to compute besides one [num_running]."""
    rows = state.table.gather_counters(state.running)
    left = rows.num_tokens + rows.num_output_placeholders - rows.num_computed_tokens - 1
    prompts: Int32Array = np.maximum(left, 0)
    return prompts


def _count_slots(state: SchedulerState, num_running: int, num_tokens: float, number: int) -> int:
    """Returns how many requests run at once, one more than `number` at most."""
    # As many as fit the KV memory.
    num_fit = int(state.config.kv_capacity_tokens * number / num_tokens) if number else 1
    return min(state.config.max_num_seqs, number + 1, max(num_fit, num_running, 1))


def _count_before(length: int, prompts: Int32Array) -> int:
    """Returns how many tokens of other prompts are computed before one of a length at most.

    Half of each pass goes to the shortest, see `share_prompts`.
    """
    return min(2 * int(prompts[prompts <= length].sum()), int(prompts.sum()))


class Turns:
    """Tells those that were refused when to come again, one after the other, not all at once."""

    def __init__(self) -> None:
        self._next = 0.0

    def take(self, now: float, soonest: float, seconds: float) -> float:
        """Returns in how many seconds to come again, `soonest` at the least.

        The request lengthens the queue by some seconds, and the next one's turn is after it. Turns
        go as far ahead as clients bear to wait; then they begin anew.
        """
        turn = max(self._next, now + soonest)
        if turn > now + LONGEST_SECONDS:
            turn = now + min(soonest, LONGEST_SECONDS)
        self._next = turn + seconds
        return min(max(turn - now, SHORTEST_SECONDS), LONGEST_SECONDS)
