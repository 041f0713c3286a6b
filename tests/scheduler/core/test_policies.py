"""Who goes first, who gives way, and who has waited long enough."""

from typing import Any

import pytest

from optimist_scheduler.core.base.values import FinishReason
from tests.scheduler.situation import Situation

pytestmark = pytest.mark.usefixtures("always_ahead")
DEPTHS = pytest.mark.parametrize("depth", [1, 3])


def admitted(situation: Situation) -> list[int]:
    return [int(name[1:]) for name in situation.worker.admitted]


def urgent(max_num_seqs: int, *requests: tuple[int, int], **values: Any) -> Situation:
    """Requests that need a slot, by priority and output length."""
    situation = Situation(policy="priority", max_num_seqs=max_num_seqs, **values)
    for handle, (priority, max_tokens) in enumerate(requests):
        situation.add(handle, [handle + 1], max_tokens, priority=priority)
    return situation


# Order.


ORDERS: dict[str, tuple[dict[str, Any], list[tuple[int, int, int]], list[int], int]] = {
    "equal priorities": (
        {"max_num_seqs": 2, "policy": "priority"}, [(1, 20, 3)] * 4, [0, 1, 2, 3], 0
    ),
    "the smallest priority first, equals by arrival": (
        {"max_num_seqs": 1, "policy": "priority"},
        [(1, 3, priority) for priority in (1, 1, 0, 2, 0)],
        [2, 4, 0, 1, 3],
        0,
    ),
    "a long prompt in front is not passed by": (
        {"num_blocks": 12}, [(20, 12, 0), (30, 2, 0), (1, 2, 0)], [0, 1, 2], 0
    ),
    "what was preempted goes ahead of those that wait": (
        {"num_blocks": 9, "max_num_seqs": 2}, [(5, 25, 0)] * 3, [0, 1, 1, 2, 2], 2
    ),
    "nobody is admitted into blocks that a preemption freed": (
        {"num_blocks": 9, "max_num_seqs": 3},
        [(1, 20, 0), (13, 20, 0), (9, 20, 0)],
        [0, 1, 1, 2],
        1,
    ),
}  # fmt: skip
"""Settings; requests by lengths of prompt and output and priority; admissions; preemptions."""


@DEPTHS
@pytest.mark.parametrize("name", ORDERS)
def test_requests_are_admitted_in_order(depth: int, name: str) -> None:
    options, requests, order, num_preemptions = ORDERS[name]
    situation = Situation(max_plans_in_flight=depth, **options)
    for handle, (num_prompt_tokens, max_tokens, priority) in enumerate(requests):
        situation.add(handle, [handle] * num_prompt_tokens, max_tokens, priority=priority)
    situation.finish()
    assert admitted(situation) == order
    assert situation.scheduler.stats.num_preemptions == num_preemptions


# Priority.


@DEPTHS
def test_a_waiting_request_that_becomes_urgent_takes_a_slot(depth: int) -> None:
    situation = urgent(1, (4, 30), max_plans_in_flight=depth)
    situation.fill()
    situation.add(1, [2], 3, priority=6)
    situation.add(2, [3], 3, priority=5)
    assert situation.scheduler.set_priority("r1", 3)
    situation.finish()
    assert admitted(situation) == [0, 1, 0, 2]
    assert not situation.scheduler.set_priority("r1", 3)


def test_drafts_never_preempt() -> None:
    situation = Situation(num_blocks=4, max_num_seqs=2)
    situation.add_predicted(0, [1], 8)
    situation.add(1, [2], 4)
    situation.finish()
    assert situation.scheduler.stats.num_preemptions == 0
    assert situation.finished(0).accepted_prediction_tokens > 0


# Starvation.


@pytest.mark.parametrize(("now", "order"), [(10.0, [1, 2]), (10.1, [1, 0, 2, 3])])
def test_a_request_that_was_overtaken_goes_first_after_its_patience(
    now: float, order: list[int]
) -> None:
    # One of low priority that one of high priority overtakes at 1.0.
    situation = urgent(1, (9, 2), starvation_seconds=10.0)
    situation.add(1, [2], 3, priority=0, now=1.0)
    situation.step(now=1.0)
    for handle in (2, 3):
        situation.add(handle, [3], 3, priority=0, now=2.0)
    situation.step(now=5.0)
    situation.step(now=5.0)
    assert situation.finished(1).reason is FinishReason.LENGTH
    assert situation.scheduler.stats.num_starved == 0
    situation.step(now=now)
    assert situation.scheduler.stats.num_starved == (now > 10)
    assert admitted(situation) == order[:2]
    situation.finish()
    assert admitted(situation)[: len(order)] == order


@DEPTHS
def test_a_starved_request_takes_a_slot_and_is_not_preempted_again(depth: int) -> None:
    situation = urgent(1, (9, 3), (0, 30), starvation_seconds=10.0, max_plans_in_flight=depth)
    situation.step(now=1.0)
    situation.scheduler.schedule(20.0)
    situation.add(2, [3], 3, priority=-5, now=20.0)
    assert situation.scheduler.stats.num_starved == 1
    situation.sent.clear()
    situation.lose_worker()
    situation.finish()
    assert admitted(situation) == [1, 0, 2, 1]
