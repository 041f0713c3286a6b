"""Pipeline stages, each with a plan of its own, and plans that the worker may run again."""

import pytest

from optimist_scheduler.core.scheduler import PauseMode
from tests.scheduler.situation import Situation

pytestmark = pytest.mark.usefixtures("always_ahead")
COUNTS = pytest.mark.parametrize("count", [2, 4])
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


@pytest.mark.parametrize(
    ("stages", "num_requests", "sizes"),
    # An odd row makes one stage wider, and one row leaves the other stages empty.
    [(2, 6, [3, 3]), (3, 6, [2, 2, 2]), (2, 5, [2, 3]), (2, 1, [1]), (3, 1, [1])],
)
def test_stages_share_the_rows_evenly(stages: int, num_requests: int, sizes: list[int]) -> None:
    situation = Situation(num_pipeline_stages=stages, max_num_seqs=6, num_blocks=100)
    for handle in range(num_requests):
        situation.add(handle, [handle], 40)
    situation.step()
    for number in range(15):
        situation.fill()
        if number >= 10:
            assert sorted(len(plan.slots) for plan in situation.sent) == sizes
        situation.scheduler.prepare()
        situation.answer()
    assert situation.scheduler.stats.num_prescheduled > 0
    situation.finish()


# Plans that are run again.


@COUNTS
@DEPTHS
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_a_plan_covers_as_many_steps_as_it_may_be_run(
    count: int, depth: int, num_drafts: int
) -> None:
    situation = Situation(
        multi_step_count=count, max_plans_in_flight=depth, num_speculative_tokens=num_drafts
    )
    for handle in range(3):
        situation.add_predicted(handle, [handle, 1], 30)
    worker, stats = situation.worker, situation.scheduler.stats
    while situation.is_busy:
        situation.fill()
        situation.answer()
        # The scheduler is slow: the worker goes on by itself for as long as it may.
        while worker.can_repeat and worker.is_busy:
            situation.repeat()
    situation.finish()
    assert worker.num_steps == stats.num_plans + stats.num_repeats
    assert stats.num_repeats > 0
    if num_drafts == 0 and depth == 1:
        # One for the prompt; of the 29 steps that follow, each plan covers `count`.
        assert stats.num_plans == 1 + -(-29 // count)


@COUNTS
def test_blocks_for_every_repeat_are_reserved_with_the_plan(count: int) -> None:
    situation = Situation(multi_step_count=count, num_speculative_tokens=3)
    for handle in (0, 1):
        situation.add_predicted(handle, [handle, 1], 40)
    situation.step()
    situation.step()
    # The prompt and the first token, and all that the runs of the plan may add.
    length = 1 + 4 + 4 * count
    assert situation.scheduler._state.blocks.num_blocks[:2].tolist() == [-(-length // 4)] * 2
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
    assert [situation.step().num_repeats for _ in range(2)] == [0, 3]
    situation.add(1, [2] * 40, 20)
    # The last chunk emits like a decode, and what follows it is one.
    assert [situation.step().num_repeats for _ in range(3)] == [0, 0, 3]
    situation.add(2, [3], 4)
    assert situation.step().num_repeats == 0
    situation.finish()


@pytest.mark.parametrize("mode", PauseMode)
def test_a_paused_scheduler_is_not_quiet_while_the_worker_may_repeat(mode: PauseMode) -> None:
    situation = Situation(multi_step_count=3)
    situation.add(0, [1], 4)
    situation.step()
    situation.step()
    situation.scheduler.pause(mode)
    for number in range(2):
        # What was ended has nothing to repeat.
        assert situation.scheduler.is_quiet == (mode is PauseMode.ABORT)
        assert len(situation.repeat().handles) == (mode is not PauseMode.ABORT), number
    assert situation.scheduler.is_quiet
