"""Decisions made ahead of a result: kept, repaired row by row, or thrown away, never wrong."""

import pytest

from optimist_common.scheduler_service.pause_mode import PauseMode
from optimist_scheduler.core.base.values import SchedulerStats
from tests.scheduler.situation import NOW, Situation

pytestmark = pytest.mark.usefixtures("always_ahead")
DEPTHS = pytest.mark.parametrize("depth", [1, 3])


def decode(
    num_requests: int = 3, max_tokens: int = 40, num_drafts: int = 1, depth: int = 1
) -> Situation:
    """Requests that decode, with as many plans in flight as may be."""
    situation = Situation(
        max_model_len=260,
        num_blocks=400,
        num_speculative_tokens=num_drafts,
        max_plans_in_flight=depth,
    )
    for handle in range(num_requests):
        add = situation.add_predicted if num_drafts > 1 else situation.add
        add(handle, [handle, 1], max_tokens)
    situation.fill()
    situation.answer()
    situation.fill()
    return situation


def turn(situation: Situation) -> None:
    """One round of the loop: prepare while the worker computes, settle, send what is prepared."""
    situation.scheduler.prepare()
    situation.answer()
    situation.fill()


def prepared(situation: Situation) -> SchedulerStats:
    """Prepares a decision, which is kept; returns the statistics."""
    before = situation.scheduler.stats.preschedule_discards.total()
    situation.scheduler.prepare()
    assert situation.scheduler._prepared.decision is not None
    assert situation.scheduler.stats.preschedule_discards.total() == before
    return situation.scheduler.stats


# Kept.


@DEPTHS
def test_a_rejection_is_no_reason_to_decide_anew(depth: int) -> None:
    situation = decode(3, 90, 4, depth)
    for number in range(1, 11):
        situation.propose(1, wrong_at=2)
        turn(situation)
        assert situation.scheduler.stats.num_preschedule_hits == number
    situation.finish()


# Repaired.


@DEPTHS
def test_a_new_window_repairs_its_row_alone(depth: int) -> None:
    situation = decode(num_drafts=4, depth=depth)
    situation.scheduler._state.table.window_end[1] = 0
    turn(situation)
    stats = prepared(situation)
    decision = situation.scheduler._prepared.decision
    assert decision is not None
    slots, drafts = decision.rows.slots.tolist(), decision.rows.num_draft_tokens.tolist()
    assert dict(zip(slots, drafts, strict=True)) == {0: 4, 1: 0, 2: 4}
    situation.propose(1)
    situation.answer()
    plan = situation.send()
    drafts = plan.num_draft_tokens.tolist()
    assert dict(zip(plan.slots.tolist(), drafts, strict=True)) == {0: 4, 1: 4, 2: 4}
    assert [slot for slot, _ in plan.windows] == [1]
    assert changed(stats) == (1, 0, 0)
    assert stats.num_preschedule_repairs == 1
    situation.finish()


def changed(stats: SchedulerStats) -> tuple[int, int, int]:
    """Returns how many rows of decisions were computed again, dropped and added."""
    return stats.num_recomputed_rows, stats.num_dropped_rows, stats.num_added_rows


@DEPTHS
@pytest.mark.parametrize("is_error", [False, True])
def test_an_abort_or_an_error_drops_its_row_alone(depth: int, is_error: bool) -> None:
    situation = decode(depth=depth)
    stats = prepared(situation)
    if is_error:
        situation.worker.failing.add("r1")
        del situation.expected[1]
    else:
        situation.abort(1)
    situation.answer()
    assert sorted(situation.send().slots.tolist()) == [0, 2]
    assert changed(stats) == (0, 1, 0)
    situation.finish()


# Thrown away.


@pytest.mark.parametrize("reason", ["pause", "worker lost", "requests over"])
def test_a_pause_a_lost_worker_and_the_end_of_all_throw_the_decision_away(reason: str) -> None:
    situation = decode(1)
    stats = prepared(situation)
    if reason == "worker lost":
        situation.lose_worker()
    else:
        if reason == "pause":
            situation.scheduler.pause(PauseMode.KEEP)
        else:
            situation.abort(0)
        situation.answer()
        assert situation.scheduler.schedule(NOW) is None
        situation.scheduler.resume()
    assert stats.preschedule_discards == {reason: 1}
    situation.finish()
