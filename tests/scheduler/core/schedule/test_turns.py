"""Prompts share passes: a short or urgent one does not wait for all of a long one."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_scheduler.core.schedule.rows import share_prompts
from tests.scheduler.situation import Situation

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
BUDGET = 16


def situation_of(**values: Any) -> Situation:
    sizes: dict[str, Any] = {"max_model_len": 400, "num_blocks": 2000, "max_num_seqs": 16}
    sizes |= {"max_num_batched_tokens": BUDGET, "max_num_waiting": 99, "max_wait_seconds": 0}
    return Situation(**{**sizes, "num_speculative_tokens": 0, **values})


def step(situation: Situation) -> dict[int, int]:
    """Runs the worker's oldest plan, sends the next, as the engine does; returns its tokens."""
    if situation.sent:
        situation.answer()
    plan = situation.send()
    situation.scheduler.prepare()
    handles = situation.table.handle.take(plan.slots).tolist()
    return dict(zip(handles, plan.num_known_tokens.tolist(), strict=True))


PROMPTS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 200)), min_size=1, max_size=20
)


@given(st.integers(0, 100), PROMPTS)
def test_shares_fill_the_pass_and_none_goes_without(
    quota: int, prompts: list[tuple[bool, int, int]]
) -> None:
    orders = [(urgent, priority, index) for index, (urgent, priority, _) in enumerate(prompts)]
    lengths = [length for *_, length in prompts]
    granted = share_prompts(quota, orders, lengths)
    assert sum(granted) == min(quota, sum(lengths))
    assert all(0 <= part <= length for part, length in zip(granted, lengths, strict=True))
    first = min(range(len(orders)), key=lambda index: orders[index])
    assert granted[first] >= min(lengths[first], quota - quota // 2)
    most_urgent = [i for i, order in enumerate(orders) if order[:2] == orders[first][:2]]
    shortest = min(most_urgent, key=lambda index: (lengths[index], index))
    assert granted[shortest] >= min(lengths[shortest], quota // 2)


@DEPTHS
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_short_prompt_is_computed_at_once_beside_a_long_one(policy: str, depth: int) -> None:
    situation = situation_of(policy=policy, max_plans_in_flight=depth)
    urgency = {"priority": 5} if policy == "priority" else {}
    situation.add(0, [1] * 300, 3, **urgency)
    for _ in range(3):
        assert step(situation) == {0: BUDGET}
    situation.add(1, [2] * 3, 3)
    tokens = step(situation)
    assert tokens == {0: BUDGET - 3, 1: 3}
    situation.finish()


@DEPTHS
def test_an_urgent_long_prompt_goes_before_less_urgent_short_ones(depth: int) -> None:
    situation = situation_of(policy="priority", max_plans_in_flight=depth)
    situation.add(0, [1] * 100, 3, priority=5)
    step(situation)
    situation.add(1, [2] * 40, 3, priority=0)
    situation.add(2, [3] * 4, 3, priority=5)
    # What runs keeps its one token in each pass.
    assert step(situation) == {0: 1, 1: BUDGET - 1}
    situation.finish()


def test_a_long_prompt_that_waits_is_passed_by_without_losing_its_place() -> None:
    situation = situation_of(max_num_seqs=3)
    situation.add(0, [1] * 200, 3)
    step(situation)
    situation.add(1, [2] * 200, 3)
    situation.add(2, [3] * 4, 3)
    # It is not begun for some tokens: it might find its beginning in the cache.
    assert step(situation) == {0: BUDGET - 4, 2: 4}
    # The last slot is kept for it.
    situation.add(3, [4] * 4, 3)
    assert 3 not in step(situation)
    situation.finish()
    assert [int(name[1:]) for name in situation.worker.admitted][:2] == [0, 2]


def test_equal_prompts_are_computed_one_after_the_other() -> None:
    situation = situation_of(enable_prefix_caching=True)
    for handle in range(3):
        situation.add(handle, [1] * 60, 3)
    for _ in range(3):
        assert step(situation) == {0: BUDGET}
    # The others find all of it but the last block.
    assert step(situation)[0] == 60 - 3 * BUDGET
    situation.answer()
    situation.finish()
    assert situation.scheduler.stats.num_prefix_hits >= 56


def test_a_prompt_that_cannot_be_admitted_takes_no_drafts_from_others() -> None:
    def count_drafts(num_prompt_tokens: int) -> int:
        situation = Situation(num_speculative_tokens=12, num_blocks=20, max_num_seqs=4)
        for handle in (0, 1):
            situation.add_predicted(handle, [handle, 7], 36)
            situation.step()
        if num_prompt_tokens:
            situation.add(2, [5] * num_prompt_tokens, 3)
        drafts = int(situation.step().num_draft_tokens.sum())
        assert situation.scheduler.num_waiting == bool(num_prompt_tokens)
        situation.finish()
        return drafts

    assert count_drafts(62) == count_drafts(0) > 12


ARRIVALS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([1, 3, 8, 20, 60, 150])), min_size=1, max_size=14
)


@settings(max_examples=40)
@given(ARRIVALS, st.integers(1, 3))
def test_every_prompt_is_computed_in_time(arrivals: list[tuple[int, int]], depth: int) -> None:
    """Within twice the passes that all before it and itself take."""
    situation = situation_of(max_plans_in_flight=depth)
    begun: dict[int, tuple[int, int]] = {}
    left: dict[int, int] = {}
    done: dict[int, int] = {}
    number = 0
    due = [(handle, pause, length) for handle, (pause, length) in enumerate(arrivals)]
    while due or left:
        number += 1
        while due and due[0][1] == 0:
            handle, _, length = due.pop(0)
            # What comes later may only have the other half of passes.
            before = sum(left.values()) + length
            situation.add(handle, [handle] * length, 1)
            left[handle] = length
            begun[handle] = number, before
        if due:
            due[0] = due[0][0], due[0][1] - 1, due[0][2]
        if not left:
            continue
        tokens = step(situation)
        # Passes are full while there is enough to compute.
        assert sum(tokens.values()) == min(BUDGET, sum(left.values()))
        for handle, count in tokens.items():
            left[handle] -= count
            if not left[handle]:
                del left[handle]
                done[handle] = number
    for handle, (first, before) in begun.items():
        passes = done[handle] - first + 1
        # Each running prompt has one token of each pass, whatever its turn is.
        assert passes <= math.ceil(before / ((BUDGET - len(arrivals)) / 2 + 1)) + 1
    situation.settle()
    situation.finish()
