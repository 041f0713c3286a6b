"""How long a request would wait for its turn, and when one that may not wait is to come again.

The queue is gone through as the scheduler would: each request ahead takes the slot that is free
first, and keeps it for as long as its tokens probably take. What a token takes is measured: passes
by their tokens (`CostCurve`), how late they come, and what a row gets in each (`Pace`).
"""

from heapq import heapify, heapreplace
from itertools import takewhile

from optimist_scheduler.core.base.values import FinishReason, RejectionError
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.core.requests.state import SchedulerState
from optimist_scheduler.core.schedule.rows import gives_way

SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 60.0
"""Between these a client that was refused is to come again; some clients ignore longer ones."""


class Speed:
    """What the tokens of a request take while a number of requests run, in seconds."""

    def __init__(self, state: SchedulerState, num_rows: int) -> None:
        """Takes a state in which so many requests run at once."""
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

    def serve(self, num_prompt_tokens: int, num_output_tokens: float) -> float:
        """Returns for how long a request keeps its slot: prompts hold up all that run."""
        return num_output_tokens * self._output + num_prompt_tokens * self._prompt * self._num_rows


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
        """Goes through all that is ahead of a request as urgent as this; changes nothing."""
        table, pace, order = state.table, state.pace, request.order
        ahead = [*takewhile(lambda other: other.order < order, state.waiting.requests)]
        running = [table.request(slot) for slot in state.running.tolist()]
        lengths = table.num_tokens[state.running].tolist()
        outputs = [
            pace.expect_more(length - each.num_prompt_tokens, _most(each))
            for each, length in zip(running, lengths, strict=True)
        ]
        outputs += [_expect(state, other) for other in ahead]
        self._prompts = count_prompt_tokens(state)
        self._prompts += [len(other.token_ids) for other in ahead]
        lengths += self._prompts[len(running) :]
        num_slots = _count_slots(state, len(running), sum(lengths) + sum(outputs), len(lengths))
        self._state, self._num_slots = state, num_slots
        self._speed = Speed(state, num_slots)
        times = [self._speed.serve(*each) for each in zip(self._prompts, outputs, strict=True)]
        free = [0.0] * (num_slots - len(running))
        for each, time in zip(running, times, strict=False):
            free.append(0.0 if gives_way(each, request) else time)
        heapify(free)
        for time in times[len(running) :]:
            heapreplace(free, free[0] + time)
        self._slot_seconds = free[0]

    def find_seconds(self, num_tokens: int) -> float:
        """Returns how long it takes until a prompt of a length is begun."""
        num_before = _count_before(num_tokens, self._prompts)
        return max(self._slot_seconds, num_before * self._speed.prefill)

    def find_turn(self, request: Request) -> float:
        """Returns by how many seconds a request would lengthen the queue."""
        output = _expect(self._state, request)
        return self._speed.serve(len(request.token_ids), output) / self._num_slots

    @property
    def full_pass(self) -> float:
        """What a pass takes that is full of prompts, in seconds."""
        return self._speed.full_pass


def count_prompt_tokens(state: SchedulerState) -> list[int]:
    """Returns how many known tokens each running request has to compute besides one."""
    rows = state.table.gather_counters(state.running)
    left = rows.num_tokens + rows.num_output_placeholders - rows.num_computed_tokens - 1
    prompts: list[int] = left.clip(0).tolist()
    return prompts


def _count_slots(state: SchedulerState, num_running: int, num_tokens: float, number: int) -> int:
    """Returns how many requests run at once, one more than `number` at most.

    Args:
        state: The state.
        num_running: How many run.
        num_tokens: Of all of them and of those ahead, when they are as long as they get.
        number: How many these are.
    """
    # As many as fit the KV memory.
    num_fit = int(state.config.kv_capacity_tokens * number / num_tokens) if number else 1
    return min(state.config.max_num_seqs, number + 1, max(num_fit, num_running, 1))


def _most(request: Request) -> int:
    return request.max_length - request.num_prompt_tokens


def _expect(state: SchedulerState, request: Request) -> float:
    num_output = len(request.token_ids) - request.num_prompt_tokens
    return state.pace.expect_more(num_output, _most(request))


def _count_before(length: int, prompts: list[int]) -> int:
    """Returns how many tokens of other prompts are computed before one of a length at most.

    Half of each pass goes to the shortest, see `share_prompts`.
    """
    return min(2 * sum(other for other in prompts if other <= length), sum(prompts))


class Turns:
    """Tells those that were refused when to come again, one after the other, not all at once."""

    def __init__(self) -> None:
        self._next = 0.0

    def take(self, now: float, soonest: float, seconds: float) -> float:
        """Returns in how many seconds to come again.

        Turns go as far ahead as clients bear to wait; then they begin anew.

        Args:
            now: The time, in seconds.
            soonest: When there is probably room, in seconds from now.
            seconds: By how much the request lengthens the queue.
        """
        turn = max(self._next, now + soonest)
        if turn > now + LONGEST_SECONDS:
            turn = now + min(soonest, LONGEST_SECONDS)
        self._next = turn + seconds
        return min(max(turn - now, SHORTEST_SECONDS), LONGEST_SECONDS)
