"""Pipeline stages, each with a plan of its own, and plans that the worker may run again."""

from typing import Any

import pytest

from optimist_scheduler.core.values import FinishReason
from tests.scheduler.drive import NOW, rows
from tests.scheduler.situation import Situation

pytestmark = pytest.mark.usefixtures("always_ahead")
STAGES = pytest.mark.parametrize("stages", [2, 3])
COUNTS = pytest.mark.parametrize("count", [2, 4])
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


# Pipeline stages.


@STAGES
@pytest.mark.parametrize("is_optimistic", [False, True])
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_a_request_is_in_one_stage_at_a_time(
    stages: int, is_optimistic: bool, num_drafts: int
) -> None:
    situation = Situation(
        num_pipeline_stages=stages,
        enable_optimistic_scheduling=is_optimistic,
        num_speculative_tokens=num_drafts,
        max_num_seqs=6,
    )
    for handle in range(8):
        situation.add_predicted(handle, [handle] * (1 + 4 * handle), 9)
    most = 0
    while situation.scheduler.num_running or situation.scheduler.num_waiting or situation.sent:
        situation.fill()
        in_flight = [slot for plan in situation.sent for slot in plan.slots.tolist()]
        assert len(in_flight) == len(set(in_flight))
        assert (situation.table.num_plans_in_flight <= 1).all()
        most = max(most, len(situation.sent))
        situation.scheduler.prepare()
        situation.answer()
    assert most == stages
    situation.finish()


@STAGES
def test_stages_share_the_rows_evenly(stages: int) -> None:
    situation = Situation(num_pipeline_stages=stages, max_num_seqs=6, num_blocks=100)
    for handle in range(6):
        situation.add(handle, [handle], 40)
    situation.step()
    for _ in range(10):
        situation.fill()
        situation.scheduler.prepare()
        situation.answer()
    for _ in range(5):
        situation.fill()
        assert [len(plan.slots) for plan in situation.sent] == [6 // stages] * stages
        situation.scheduler.prepare()
        situation.answer()
    situation.finish()


def test_an_odd_row_makes_one_stage_wider() -> None:
    situation = Situation(num_pipeline_stages=2, max_num_seqs=6, num_blocks=100)
    for handle in range(5):
        situation.add(handle, [handle], 40)
    situation.step()
    for _ in range(6):
        situation.fill()
        assert sorted(len(plan.slots) for plan in situation.sent) == [2, 3]
        situation.answer()
    situation.finish()


@STAGES
def test_one_request_leaves_the_other_stages_empty(stages: int) -> None:
    situation = Situation(num_pipeline_stages=stages)
    situation.add_predicted(0, [1, 2], 20)
    while situation.scheduler.num_running + situation.scheduler.num_waiting:
        situation.send()
        assert situation.scheduler.schedule(NOW) is None
        situation.answer()
    situation.finish()


@STAGES
def test_a_prompt_goes_through_the_stages_chunk_after_chunk(stages: int) -> None:
    situation = Situation(num_pipeline_stages=stages)
    situation.add(0, [1] * 40, 5)
    for num_known in (16, 16, 8):
        assert situation.send().num_known_tokens.tolist() == [num_known]
        assert situation.scheduler.schedule(NOW) is None
        situation.answer()
    situation.finish()


@STAGES
def test_stages_short_of_blocks_end_everything(stages: int) -> None:
    situation = Situation(num_pipeline_stages=stages, num_blocks=10)
    for handle in range(6):
        situation.add_predicted(handle, [handle, 1, 2], 30)
    situation.finish()
    assert situation.scheduler.stats.num_preemptions > 0


# Plans that are run again.


def lease(count: int, **values: Any) -> Situation:
    """Two requests that decode, their last plan settled and still with the worker."""
    situation = Situation(multi_step_count=count, **values)
    for handle in (0, 1):
        situation.add_predicted(handle, [handle, 1], 40)
    situation.step()
    situation.step()
    assert situation.worker.can_repeat
    return situation


@COUNTS
@DEPTHS
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_fewer_plans_than_steps_say_the_same(count: int, depth: int, num_drafts: int) -> None:
    situation = Situation(
        multi_step_count=count, max_plans_in_flight=depth, num_speculative_tokens=num_drafts
    )
    for handle in range(3):
        situation.add_predicted(handle, [handle, 1], 30)
    scheduler, worker = situation.scheduler, situation.worker
    while scheduler.num_running or scheduler.num_waiting or situation.sent:
        situation.fill()
        situation.scheduler.prepare()
        situation.answer()
        # The scheduler is slow: the worker goes on by itself for as long as it may.
        while worker.can_repeat and worker.is_busy:
            situation.repeat()
    situation.finish()
    stats = scheduler.stats
    assert stats.num_repeats > 0
    assert worker.num_steps == stats.num_plans + stats.num_repeats
    if num_drafts == 0 and depth == 1:
        # One for the prompt; of the 29 steps that follow, each plan covers `count`.
        assert stats.num_plans == 1 + -(-29 // count)


@COUNTS
def test_blocks_for_every_repeat_are_reserved_with_the_plan(count: int) -> None:
    situation = lease(count, num_speculative_tokens=3)
    held = situation.scheduler._state.blocks.num_blocks
    # The prompt and the first token, and all that the runs of the plan may add.
    length = 1 + 4 + 4 * count
    assert held[:2].tolist() == [-(-length // 4)] * 2
    assert situation.table.num_lease_tokens[:2].tolist() == [4 * (count - 1)] * 2
    num_free = situation.scheduler.num_free_blocks
    for _ in range(count - 1):
        situation.repeat()
    assert situation.scheduler.num_free_blocks == num_free
    assert not situation.worker.can_repeat
    situation.finish()
    # The next request in the slot owes nothing to the last.
    situation.add(2, [5], 5)
    situation.step()
    assert situation.table.num_lease_tokens[situation.slot(2)] == 0
    situation.finish()


def test_nothing_is_repeated_beside_a_prompt_or_while_somebody_waits() -> None:
    situation = Situation(multi_step_count=4, max_num_seqs=2)
    situation.add(0, [1], 30)
    assert situation.step().num_repeats == 0
    assert situation.step().num_repeats == 3
    situation.add(1, [2] * 40, 20)
    # The last chunk emits like a decode, and what follows it is one.
    assert [situation.step().num_repeats for _ in range(3)] == [0, 0, 3]
    situation.add(2, [3], 4)
    assert situation.step().num_repeats == 0
    situation.finish()


@COUNTS
def test_a_stop_in_a_repeat_ends_the_request(count: int) -> None:
    situation = Situation(multi_step_count=count, num_speculative_tokens=0)
    stop = situation.add(9, [1, 2], 20)[2]
    situation.abort(9)
    situation.add(0, [1, 2], 20, stop_token_ids=[stop])
    situation.add(1, [3], 20)
    situation.step()
    situation.step()
    assert situation.got.ended == {}
    outputs = situation.repeat()
    assert [(each.handle, each.finished.reason) for each in outputs.ended] == [
        (0, FinishReason.STOP)
    ]
    if count > 2:
        assert list(rows(situation.repeat())) == [1]
    situation.finish()


@COUNTS
def test_the_length_limit_in_a_repeat_ends_the_request(count: int) -> None:
    situation = Situation(multi_step_count=count, num_speculative_tokens=0)
    situation.add(0, [1, 2], 3)
    situation.add(1, [3], 20)
    situation.step()
    situation.step()
    outputs = situation.repeat()
    assert [(each.handle, each.finished.reason) for each in outputs.ended] == [
        (0, FinishReason.LENGTH)
    ]
    situation.finish()
    assert situation.finished(0).num_passes == 3


@COUNTS
def test_an_abort_during_a_repeat_delivers_nothing_more(count: int) -> None:
    situation = lease(count)
    before = situation.text(0).copy()
    situation.abort(0)
    for _ in range(count - 1):
        # The worker does not know yet.
        assert list(rows(situation.repeat())) == [1]
    assert situation.text(0) == before
    situation.finish()


@COUNTS
def test_a_slot_is_used_again_while_an_old_repeat_is_on_its_way(count: int) -> None:
    situation = lease(count, max_num_seqs=2)
    situation.abort(0)
    situation.add(2, [7, 7], 10)
    plan = situation.send()
    # The plan goes out with the slot for the new request; the worker still repeats the old one.
    assert (plan.released_slots, plan.admissions[0].slot) == ([0], 0)
    before = situation.counters(0)
    assert list(rows(situation.repeat())) == [1]
    assert situation.counters(0) == before == (2, 1, 2)
    situation.answer()
    situation.finish()


@COUNTS
@DEPTHS
def test_a_newer_result_ends_the_lease(count: int, depth: int) -> None:
    situation = Situation(multi_step_count=count, max_plans_in_flight=depth)
    situation.add(0, [1], 40)
    situation.fill()
    situation.answer()
    situation.fill()
    for _ in range(4):
        situation.answer()
        situation.fill()
    # All that is in flight is leased, and the last one that was settled.
    assert situation.table.num_lease_tokens[0] == (depth + 1) * (count - 1)
    situation.finish()


@COUNTS
def test_repeats_at_the_edge_of_the_pool_never_take_too_much(count: int) -> None:
    for num_blocks in range(8, 16):
        situation = Situation(
            multi_step_count=count, num_blocks=num_blocks, block_size=3, max_plans_in_flight=2
        )
        for handle in range(3):
            situation.add_predicted(handle, [handle, 1], 18)
        while situation.scheduler.num_running or situation.scheduler.num_waiting or situation.sent:
            situation.fill()
            situation.answer()
            if situation.worker.can_repeat and situation.worker.is_busy:
                situation.repeat()
        situation.finish()
