"""How long requests wait, in virtual time: what is refused, and when that may come again."""

import heapq
import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.core.base.values import FinishReason, RejectionError
from optimist_scheduler.core.requests.pace import FIRST_ANSWER_TOKENS, Pace
from optimist_scheduler.core.wait import LONGEST_SECONDS, OverloadedError, Turns
from optimist_scheduler.core.width.costs import NO_TIMINGS, Timings
from tests.scheduler.situation import Situation, ints

TIMINGS = Timings([1, 64, 256], [20_000, 40_000, 120_000])
"""Passes of 20 ms, of 40 with 64 tokens, in microseconds."""
BOUND = 4.0


def pass_ns(num_tokens: int, factor: float = 1.0) -> int:
    return round(factor * (20e6 + 0.32e6 * num_tokens))


class Clients:
    """Clients in a closed loop, and the worker, both in virtual time.

    Each asks, reads its answer and asks again at once; after a refusal, when that says.
    """

    def __init__(self, timings: Timings = TIMINGS, **values: Any) -> None:
        sizes: dict[str, Any] = {"max_model_len": 400, "num_blocks": 4000, "max_num_seqs": 8}
        sizes |= {"max_num_batched_tokens": 64, "max_num_waiting": 10_000}
        sizes |= {"max_wait_seconds": BOUND, "num_speculative_tokens": 0}
        self.situation = Situation(timings, **{**sizes, **values})
        self.situation.is_checked = False
        self.now = 0.0
        self.factor = 1.0
        """How many times as long passes take."""
        self.waits: list[tuple[float, float]] = []
        """When requests were added that got a token, and how long that took."""
        self.retries: list[float] = []
        """After how many seconds those that were refused may come again."""
        self.returns: list[float] = []
        """When that is."""
        self._handles = itertools.count()
        self._due: list[tuple[float, int, tuple[int, int, int]]] = []
        self._begun: dict[int, tuple[float, tuple[int, int, int]]] = {}
        self._waiting: set[int] = set()
        self._turns = Turns()

    def arrive(self, number: int, prompt: int = 10, most: int = 20, stop: int = 0) -> None:
        """Lets clients ask from now on.

        Args:
            number: How many.
            prompt: Tokens of their prompts.
            most: Most tokens of their answers.
            stop: Tokens that they have before a stop token; 0 for none.
        """
        for _ in range(number):
            heapq.heappush(self._due, (self.now, next(self._handles), (prompt, most, stop)))

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        end = self.now + seconds
        while self.now < end:
            while self._due and self._due[0][0] <= self.now:
                self._ask(*heapq.heappop(self._due)[1:])
            self._pass(end)

    def drain(self) -> float:
        """Lets nobody ask any more; returns how long it takes until all is answered."""
        self._due.clear()
        begun = self.now
        while self.situation.is_busy:
            self._pass(self.now + 1000, asks_again=False)
        return self.now - begun

    def _pass(self, end: float, *, asks_again: bool = True) -> None:
        if not self.situation.is_busy:
            self.now = min(end, self._due[0][0]) if self._due else end
            return
        situation = self.situation
        if (plan := situation.scheduler.schedule(self.now)) is not None:
            situation.sent.append(plan)
        num_tokens = int((plan.num_known_tokens + plan.num_draft_tokens).sum()) if plan else 1
        taken = pass_ns(num_tokens, self.factor)
        situation.step_ns = lambda _: taken
        self.now += taken / 1e9
        situation.answer()
        for handle in [*self._waiting]:
            if situation.text(handle):
                self._waiting.remove(handle)
                asked = self._begun[handle][0]
                self.waits.append((asked, self.now - asked))
        for handle in self._begun.keys() & situation.got.ended.keys():
            _, sizes = self._begun.pop(handle)
            if asks_again:
                heapq.heappush(self._due, (self.now, next(self._handles), sizes))

    def _ask(self, handle: int, sizes: tuple[int, int, int]) -> None:
        num_prompt, most, stop = sizes
        # Others share nothing of it.
        prompt = [handle % 50, handle // 50 % 50, *[handle % 50] * num_prompt][:num_prompt]
        values = dict[str, Any]()
        if stop:
            text = self.situation.foresee(prompt, stop)
            values = {"stop_token_ids": [text[-1]], "min_tokens": stop}
        try:
            self.situation.add(handle, prompt, most, self.now, **values)
        except OverloadedError as error:
            seconds = self._turns.take(self.now, error.soonest, error.turn_seconds)
            self.retries.append(seconds)
            self.returns.append(self.now + seconds)
            again = self.now + seconds
            heapq.heappush(self._due, (again, next(self._handles), sizes))
        else:
            self._begun[handle] = self.now, sizes
            self._waiting.add(handle)

    def longest_wait(self, since: float = 0.0) -> float:
        return max(seconds for asked, seconds in self.waits if asked >= since)


LOADS: dict[str, tuple[dict[str, Any], list[tuple[int, int, int, int]]]] = {
    "nothing known of the worker": ({"timings": NO_TIMINGS}, [(160, 10, 20, 0)]),
    "long and short ones": ({}, [(60, 10, 8, 0), (60, 100, 60, 0)]),
    "answers that end before they might": ({}, [(160, 10, 380, 20)]),
    "little memory": ({"num_blocks": 40, "max_plans_in_flight": 3}, [(160, 10, 20, 0)]),
}


@pytest.mark.parametrize("name", LOADS)
def test_who_is_taken_gets_a_token_in_time(name: str) -> None:
    values, loads = LOADS[name]
    clients = Clients(**values)
    for load in loads:
        clients.arrive(*load)
    clients.run(15)
    # Estimates are off by some; the first ones by what nobody could know.
    assert clients.longest_wait(since=5) < 1.4 * BOUND
    if values.get("timings") != NO_TIMINGS:
        assert clients.longest_wait() < 2 * BOUND
        assert len({round(seconds) for seconds in clients.retries}) > 2
    assert clients.drain() < 2.5 * BOUND
    # Nobody is refused without need: what is taken does wait.
    assert clients.longest_wait(since=5) > 0.5 * BOUND
    # Those that are refused do not come back together.
    returns = Counter(int(at) for at in clients.returns if 5 < at < 15)
    assert max(returns.values()) < 3 * returns.total() / 10
    assert all(1 <= seconds <= LONGEST_SECONDS for seconds in clients.retries)


def test_an_urgent_request_is_judged_by_its_own_place() -> None:
    clients = Clients(policy="priority")
    situation = clients.situation
    clients.arrive(160)
    clients.run(2)
    assert clients.retries
    with pytest.raises(OverloadedError, match="would wait for"):
        situation.add(1000, [1] * 10, 20, clients.now, priority=1)
    situation.add(1001, [1] * 10, 20, clients.now, priority=-1)


def test_a_request_that_goes_on_elsewhere_is_not_refused() -> None:
    clients = Clients()
    clients.arrive(160)
    clients.run(2)
    with pytest.raises(OverloadedError):
        clients.situation.add(1000, [1] * 10, 20, clients.now)
    prompt = [1] * 10
    given = clients.situation.foresee(prompt, 3)
    clients.situation.add(1001, prompt, 20, clients.now, output_token_ids=given)


def test_too_many_are_refused_with_when_one_leaves() -> None:
    situation = Situation(TIMINGS, max_wait_seconds=0, max_num_seqs=1, max_num_waiting=4)
    situation.step_ns = pass_ns
    situation.add(0, [1] * 4, 40, now=0.0)
    situation.step()
    for handle in range(1, 5):
        situation.add(handle, [1] * 4, 40, now=0.0)
    with pytest.raises(RejectionError, match="4 requests wait already") as caught:
        situation.add(5, [1] * 4, 40, now=0.0)
    assert caught.value.finished.reason is FinishReason.OVERLOADED
    # An answer takes 40 passes of 20 ms.
    assert isinstance(caught.value, OverloadedError)
    assert 0.5 < caught.value.soonest < 1.5


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.floats(0, 90), st.floats(0.01, 20)), min_size=1, max_size=80
    )
)
def test_turns_come_one_after_the_other(refusals: list[tuple[float, float, float]]) -> None:
    turns, now = Turns(), 0.0
    for pause, soonest, seconds in refusals:
        now += pause
        seconds_said = turns.take(now, soonest, seconds)
        assert min(max(soonest, 1), LONGEST_SECONDS) - 1e-9 <= seconds_said <= LONGEST_SECONDS


def test_answers_are_expected_to_be_as_long_as_others_of_their_kind() -> None:
    pace = Pace()

    def expect(most: int, num_tokens: int = 0) -> float:
        return float(pace.expect_more(ints(num_tokens), ints(most))[0])

    assert expect(5000) == FIRST_ANSWER_TOKENS
    assert expect(16) == 16
    for _ in range(50):
        pace.note_answer(100, 5000)
        pace.note_answer(16, 16)
    assert expect(6000) == pytest.approx(100)
    assert expect(17) == pytest.approx(16)
    # Of no kind that is known: as all are.
    assert 16 < expect(200) < 100
    assert expect(5000, 30) == pytest.approx(70)
    # One that is longer than the others may be as long again.
    assert expect(5000, 150) == pytest.approx(100)
    assert expect(160, 150) == pytest.approx(10)
    assert expect(2**31 - 1, 2**31 - 2) == 1
