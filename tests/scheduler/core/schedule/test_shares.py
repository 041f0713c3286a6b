"""What prompts, drafts and stages of a pipeline get of passes."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_scheduler.core.schedule.rows import share_prompts
from optimist_scheduler.core.width.costs import Timings
from tests.scheduler.situation import Situation, make_window, set_window

pytestmark = pytest.mark.usefixtures("always_ahead")

MILLISECOND = 1_000_000
SIZES = [2**power for power in range(9)]
DEAR = Timings(SIZES, [1000 + 100 * each for each in SIZES])
"""A pass of 1 ms, and 0.1 ms for each token."""
FLAT = Timings([1, 2, 4, 8, 16], [1000] * 5)


def widths(situation: Situation, num_steps: int) -> list[int]:
    """Returns the drafts that the only request gets in each of the next steps."""
    return [int(situation.step().num_draft_tokens[0]) for _ in range(num_steps)]


def test_drafts_are_left_off_while_they_are_not_worth_it_and_come_back() -> None:
    situation = Situation(FLAT, draft_width="goodput", max_model_len=320, num_blocks=80)
    situation.add_predicted(0, [1, 2], 310)
    situation.step_ns = lambda num_tokens: MILLISECOND
    situation.step()
    assert widths(situation, 16) == [4] * 16
    # Each draft costs more than a pass of its own.
    situation.step_ns = lambda num_tokens: (6 * num_tokens - 5) * MILLISECOND
    assert 0 in widths(situation, 33)
    # A pass counts as four times what was expected at most, so that a few more are tried.
    assert widths(situation, 16).count(0) >= 12
    # A pass costs the same again, whatever it holds.
    situation.step_ns = lambda num_tokens: 20 * MILLISECOND
    chosen = []
    for _ in range(33):
        # What was not drafted from has rested.
        situation.propose(0)
        chosen += widths(situation, 1)
    assert 4 in chosen
    situation.finish()


def test_drafts_end_where_they_are_not_worth_their_cost() -> None:
    sizes: dict[str, Any] = {"max_num_batched_tokens": 64, "num_blocks": 200, "max_model_len": 200}
    situation = Situation(DEAR, draft_width="goodput", num_speculative_tokens=16, **sizes)
    situation.step_ns = lambda num_tokens: 1000 * (1000 + 100 * num_tokens)
    truth = situation.add(9, [1, 2], 60)
    situation.drain()
    situation.add(0, [1, 2], 60, predicted_token_ids=truth)
    situation.step()
    # Six that are nearly certain, and then hardly any chance.
    chances = [0.99**place for place in range(1, 7)] + [0.02] * 20
    set_window(situation.scheduler, "r0", make_window(1, 1, truth[1:27], chances))
    assert situation.send().num_draft_tokens.tolist() == [6]
    situation.answer()
    # What is left behind seven tokens has a chance of its own, once it is what comes.
    assert situation.send().num_draft_tokens.tolist() == [16]
    situation.answer()
    situation.drain()


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


ARRIVALS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([1, 3, 8, 20, 60, 150])), min_size=1, max_size=14
)


@settings(max_examples=settings().max_examples // 2)
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
