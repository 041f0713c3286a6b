"""What a pause does to requests and plans, and when all is quiet."""

import pytest

from optimist_scheduler.core.scheduler import PauseMode
from optimist_scheduler.core.values import FinishReason
from tests.scheduler.drive import NOW
from tests.scheduler.situation import Situation

pytestmark = pytest.mark.usefixtures("always_ahead")
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


@DEPTHS
def test_a_pause_keeps_what_runs_where_it_is(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth, max_num_seqs=2)
    for handle in range(3):
        situation.add(handle, [handle], 12)
    situation.fill()
    scheduler = situation.scheduler
    assert scheduler.pause(PauseMode.KEEP) == []
    while situation.sent:
        assert scheduler.is_paused
        assert not scheduler.is_quiet
        scheduler.prepare()
        assert scheduler.schedule(NOW) is None
        situation.answer()
    assert scheduler.is_quiet
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    assert [len(situation.text(handle)) for handle in range(3)] == [depth, depth, 0]
    scheduler.resume()
    assert (scheduler.is_paused, scheduler.is_quiet) == (False, False)
    situation.finish()
    assert situation.worker.admitted == ["r0", "r1", "r2"]


@DEPTHS
def test_a_pause_waits_for_what_runs_and_admits_nobody(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth, max_num_seqs=2)
    situation.add(0, [0], 3)
    situation.add(1, [1], 9)
    situation.fill()
    scheduler = situation.scheduler
    assert scheduler.pause(PauseMode.WAIT) == []
    situation.add(2, [2], 9)
    while scheduler.num_running or situation.sent:
        assert not scheduler.is_quiet
        while scheduler.can_send and (plan := scheduler.schedule(NOW)) is not None:
            situation.sent.append(plan)
        scheduler.prepare()
        situation.answer()
    assert scheduler.is_quiet
    assert set(situation.got.ended) == {0, 1}
    assert (scheduler.num_waiting, scheduler.schedule(NOW)) == (1, None)
    scheduler.resume()
    situation.finish()


@DEPTHS
def test_a_pause_ends_all_requests(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth, max_num_seqs=2)
    for handle in range(3):
        situation.add(handle, [handle], 12)
    situation.fill()
    scheduler = situation.scheduler
    ended = scheduler.pause(PauseMode.ABORT)
    assert [(each.handle, each.finished.reason) for each in ended] == [
        (handle, FinishReason.ABORTED) for handle in range(3)
    ]
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
    while situation.sent:
        assert not scheduler.is_quiet
        outputs = situation.answer()
        assert len(outputs.handles) == len(outputs.ended) == 0
    assert scheduler.is_quiet
    assert scheduler.num_free_blocks == situation.config.num_blocks
    scheduler.resume()
    situation.expected.clear()
    situation.add(0, [5], 5)
    situation.finish()


@pytest.mark.parametrize("mode", [PauseMode.KEEP, PauseMode.WAIT])
def test_a_paused_scheduler_is_not_quiet_while_the_worker_may_repeat(mode: PauseMode) -> None:
    situation = Situation(multi_step_count=3)
    situation.add(0, [1], 4)
    situation.step()
    situation.step()
    assert situation.worker.can_repeat
    situation.scheduler.pause(mode)
    for _ in range(2):
        assert not situation.scheduler.is_quiet
        situation.repeat()
    assert situation.scheduler.is_quiet
    situation.scheduler.resume()
    situation.finish()


def test_an_abort_by_a_pause_leaves_nothing_to_repeat() -> None:
    situation = Situation(multi_step_count=3)
    situation.add(0, [1], 9)
    situation.step()
    situation.step()
    situation.scheduler.pause(PauseMode.ABORT)
    assert situation.scheduler.is_quiet
    outputs = situation.repeat()
    assert len(outputs.handles) == len(outputs.ended) == 0


def test_a_worker_that_is_lost_in_a_pause_does_not_end_it() -> None:
    situation = Situation()
    situation.add(0, [1], 9)
    situation.send()
    situation.scheduler.pause(PauseMode.WAIT)
    situation.lose_worker()
    assert situation.scheduler.is_paused
    assert situation.scheduler.schedule(NOW) is None
    situation.scheduler.resume()
    situation.finish()
