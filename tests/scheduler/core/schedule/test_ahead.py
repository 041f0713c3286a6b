"""When a plan is sent before the results of those in flight are known."""

from typing import Any

import pytest

from tests.scheduler.situation import SLOW, Situation

FEW, MANY = 4, 17
"""Drafts that a new row is likely, and unlikely, to have accepted all."""


def ahead(num_drafts: int, **values: Any) -> Situation:
    return Situation(
        SLOW,
        max_plans_in_flight=2,
        num_speculative_tokens=num_drafts,
        max_num_batched_tokens=64,
        num_blocks=200,
        **values,
    )


def num_sent(situation: Situation) -> int:
    situation.fill()
    return situation.scheduler.num_plans_in_flight


@pytest.mark.parametrize(("num_drafts", "num_plans"), [(0, 2), (FEW, 2), (MANY, 1)])
def test_a_row_is_planned_ahead_of_drafts_that_are_likely_accepted(
    num_drafts: int, num_plans: int
) -> None:
    situation = ahead(num_drafts)
    situation.add_predicted(0, [1, 2], 40)
    assert num_sent(situation) == num_plans
    situation.finish()


@pytest.mark.parametrize(
    ("values", "num_plans"),
    [
        ({}, 2),
        # A row that is to be aligned waits for its result; without drafts it has no reason to.
        ({"predicted_token_ids": [9, 9, 9]}, 1),
        ({"predicted_token_ids": [9, 9, 9], "max_draft_tokens": 0}, 2),
    ],
)
def test_a_row_that_has_no_draft_waits_only_to_be_aligned(
    values: dict[str, Any], num_plans: int
) -> None:
    situation = ahead(FEW)
    situation.add(0, [1, 2], 20, **values)
    assert num_sent(situation) == num_plans
    situation.answer()
    assert num_sent(situation) == num_plans
    situation.finish()


def test_beside_a_row_that_profits_others_run_too() -> None:
    situation = ahead(MANY)
    situation.add_predicted(0, [1, 2], 40)
    situation.add(1, [3], 20)
    assert num_sent(situation) == 2
    assert len(situation.sent[1].slots) == 2
    situation.finish()


@pytest.mark.parametrize("is_optimistic", [True, False])
def test_what_was_held_back_is_sent_with_the_result(is_optimistic: bool) -> None:
    situation = ahead(MANY, enable_optimistic_scheduling=is_optimistic)
    situation.add_predicted(0, [1, 2], 40)
    assert num_sent(situation) == 1
    situation.scheduler.prepare()
    assert num_sent(situation) == 1
    situation.answer()
    assert num_sent(situation) == 1
    stats = situation.scheduler.stats
    # The one that was sent, and the one after it, which is held back again.
    kept = (1, 2) if is_optimistic else (0, 0)
    assert (stats.num_preschedule_hits, stats.num_prescheduled) == kept
    situation.finish()
