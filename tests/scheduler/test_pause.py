"""What a pause does to requests and plans, and when all is quiet; how many drafts are asked for."""

import pytest

from optimist_scheduler.core.output import FinishReason
from optimist_scheduler.core.scheduler import PauseMode
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


# How many drafts.


@DEPTHS
@pytest.mark.parametrize("most", [0, 1, 3, None, 99])
def test_a_request_limits_its_drafts(depth: int, most: int | None) -> None:
    situation = Situation(max_plans_in_flight=depth, num_speculative_tokens=6)
    situation.add_predicted(0, [1, 2], 40, max_draft_tokens=most)
    situation.add_predicted(1, [3], 40)
    limit = 6 if most is None else min(most, 6)
    widest = 0
    while 0 not in situation.got.ended:
        while situation.scheduler.can_send and (plan := situation.scheduler.schedule(NOW)):
            situation.sent.append(plan)
            drafts = dict(zip(plan.slots.tolist(), plan.num_draft_tokens.tolist(), strict=True))
            widest = max(widest, drafts.get(0, 0))
        situation.answer()
    assert widest == limit
    assert (situation.finished(0).accepted_prediction_tokens > 0) == (limit > 0)
    situation.finish()


MILLISECOND = 1_000_000
FLAT = [(num_tokens, 1000) for num_tokens in (1, 2, 4, 8, 16)]


def widths(situation: Situation, num_steps: int) -> list[int]:
    """Returns the drafts that the only request gets in each of the next steps."""
    return [int(situation.step().num_draft_tokens[0]) for _ in range(num_steps)]


def test_the_adaptive_policy_narrows_what_is_rejected_and_widens_what_is_not() -> None:
    situation = Situation(
        draft_width="adaptive", num_speculative_tokens=12, max_model_len=260, num_blocks=80
    )
    situation.add_predicted(0, [1, 2], 250)
    for _ in range(24):
        situation.propose(0, wrong_at=0)
        situation.step()
    situation.propose(0)
    assert widths(situation, 1) == [1]
    situation.add_predicted(1, [3], 250)
    situation.abort(0)
    situation.step()
    widest = widths(situation, 18)
    assert max(widest) > 9
    assert widest == sorted(widest)
    situation.finish()


@pytest.mark.parametrize("policy", ["goodput", "crossover"])
def test_drafts_are_left_off_while_they_are_not_worth_it_and_come_back(policy: str) -> None:
    situation = Situation(FLAT, draft_width=policy, max_model_len=320, num_blocks=80)
    situation.add_predicted(0, [1, 2], 310)
    situation.step_ns = lambda num_tokens: MILLISECOND
    assert widths(situation, 16) == [4] * 16
    # Each draft costs more than a pass of its own.
    situation.step_ns = lambda num_tokens: (6 * num_tokens - 5) * MILLISECOND
    assert 0 in widths(situation, 33)
    assert widths(situation, 16) == [0] * 16
    # A pass costs the same again, whatever it holds.
    situation.step_ns = lambda num_tokens: 20 * MILLISECOND
    assert 4 in widths(situation, 33)
    situation.finish()


def test_goodput_drafts_less_when_passes_get_dear() -> None:
    situation = Situation(
        FLAT, draft_width="goodput", max_model_len=400, num_blocks=120, num_speculative_tokens=12
    )
    situation.add_predicted(0, [1, 2], 390)
    situation.step_ns = lambda num_tokens: MILLISECOND
    assert widths(situation, 9) == [12] * 9
    # Up to four tokens a pass costs the same, then as much again for each.
    situation.step_ns = lambda num_tokens: MILLISECOND * max(1, num_tokens - 3)
    assert 0 < widths(situation, 25)[-1] < 12
    situation.finish()
