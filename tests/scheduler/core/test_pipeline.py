"""Pipeline stages, each with a plan of its own, and plans that the worker may run again."""

from dataclasses import replace

import pytest

from optimist_common.scheduler_service.pause_mode import PauseMode
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.results.nodes import ResultError
from optimist_scheduler.workers.translate import step_result
from tests.scheduler.situation import Situation, run_plan, state

pytestmark = pytest.mark.usefixtures("always_ahead")


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


@pytest.mark.parametrize("count", [2, 4])
def test_a_plan_covers_as_many_steps_as_it_may_be_run(count: int) -> None:
    situation = Situation(multi_step_count=count)
    for handle in range(3):
        situation.add(handle, [handle, 1], 30)
    while situation.is_busy:
        situation.step()
        # The scheduler is slow: the worker goes on by itself for as long as it may.
        while situation.worker.can_repeat and situation.worker.is_busy:
            situation.repeat()
    situation.finish()
    # One for the prompts; of the 29 steps that follow, each plan covers `count`.
    assert situation.scheduler.stats.num_plans == 1 + -(-29 // count)


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


def refuse(situation: Situation, result: StepResult) -> None:
    before = state(situation.scheduler)
    with pytest.raises(ResultError, match="is not the next one"):
        situation.scheduler.settle(result)
    assert state(situation.scheduler) == before


def test_only_the_result_of_the_next_run_is_taken() -> None:
    situation = Situation(max_plans_in_flight=2, multi_step_count=3)
    situation.add(1, [1, 2], 9)
    situation.step()
    situation.fill()
    first = run_plan(situation)
    for sequence, repeat in ((2, 1), (1, 0), (1, 1), (3, 0), (2, -1)):
        refuse(situation, replace(first, sequence=sequence, repeat=repeat))
    situation.got.take(situation.scheduler.settle(first))
    for repeat in (1, 2):
        again = step_result(situation.worker.repeat())
        for sequence, other in ((2, 0), (2, repeat - 1), (2, repeat + 1), (3, repeat)):
            refuse(situation, replace(again, sequence=sequence, repeat=other))
        situation.got.take(situation.scheduler.settle(again))
    # It was run as often as it may be.
    refuse(situation, replace(again, repeat=3))
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
