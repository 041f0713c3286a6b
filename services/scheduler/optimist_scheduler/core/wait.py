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
        waiting, table, running = state.waiting.requests, state.table, state.running
        ahead = waiting[: bisect_left(waiting, request.order, key=attrgetter("order"))]
        sizes = [(len(each.token_ids), each.num_prompt_tokens, each.max_length) for each in ahead]
        left, *others = np.array(sizes, np.int32).reshape(-1, 3).T
        columns = table.num_tokens, table.num_prompt_tokens, table.max_length
        lengths, num_prompt, longest = (
            np.concatenate([column[running], waits])
            for column, waits in zip(columns, (left, *others), strict=True)
        )
        self._pace = state.pace
        outputs = self._pace.expect_more(lengths - num_prompt, longest - num_prompt)
        self._prompts = np.concatenate([count_prompt_tokens(state), left])
        num_tokens = float(lengths.sum() + outputs.sum())
        self._num_slots = _count_slots(state, len(running), num_tokens, len(lengths))
        self._measure_passes(state)
        times = self._keep_slots(self._prompts, outputs)
        if state.config.policy == "priority":
            slots = map(table.request, running.tolist())
            times[: len(running)] *= [not gives_way(each, request) for each in slots]
        free = [*times[: len(running)].tolist(), *[0.0] * (self._num_slots - len(running))]
        heapify(free)
        for time in times[len(running) :].tolist():
            heapreplace(free, free[0] + time)
        self._slot_seconds = free[0]

    def _measure_passes(self, state: SchedulerState) -> None:
        """Finds what passes and tokens take while all slots are taken, in seconds."""
        config, pace, costs = state.config, self._pace, state.costs_for(state.running)
        # Each stage of a pipeline has its part of the requests.
        num_fed = round(-(-self._num_slots // config.num_pipeline_stages) * pace.fed_per_row)
        budget = max(config.max_num_batched_tokens, num_fed + 1)
        plain, full = (costs.cost_of(each) * pace.slowness / 1e9 for each in (num_fed, budget))
        self.full_pass = full
        """A pass that is full of prompts."""
        self._prefill = full / (budget - num_fed)
        self._output = plain / pace.tokens_per_row
        self._prompt = (full - plain) / (budget - num_fed)

    def _keep_slots(self, num_prompt_tokens: Int32Array, num_outputs: FloatArray) -> FloatArray:
        """Returns for how long requests keep their slots: prompts hold up all [num_requests]."""
        times: FloatArray = num_outputs * self._output
        return times + num_prompt_tokens * (self._prompt * self._num_slots)

    def find_seconds(self, num_tokens: int) -> float:
        """Returns how long it takes until a prompt of a length is begun."""
        shorter = int(self._prompts[self._prompts <= num_tokens].sum())
        # Half of each pass goes to the shortest, see `share_prompts`.
        num_before = min(2 * shorter, int(self._prompts.sum()))
        return max(float(self._slot_seconds), num_before * float(self._prefill))

    def find_turn(self, request: Request) -> float:
        """Returns by how many seconds a request would lengthen the queue."""
        length = np.array([len(request.token_ids)], np.int32)
        longest = np.array([request.max_length], np.int32)
        num_prompt = request.num_prompt_tokens
        output = self._pace.expect_more(length - num_prompt, longest - num_prompt)
        return float(self._keep_slots(length, output)[0]) / self._num_slots


def count_prompt_tokens(state: SchedulerState) -> Int32Array:
    """Returns how many known tokens running requests have to compute besides one [num_running]."""
    rows = state.table.gather_counters(state.running)
    prompts: Int32Array = np.maximum(rows.assumed_length - rows.num_computed_tokens - 1, 0)
    return prompts


def _count_slots(state: SchedulerState, num_running: int, num_tokens: float, number: int) -> int:
    """Returns how many requests run at once, one more than `number` at most."""
    # As many as fit the KV memory.
    num_fit = int(state.config.kv_capacity_tokens * number / num_tokens) if number else 1
    return min(state.config.max_num_seqs, number + 1, max(num_fit, num_running, 1))


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
