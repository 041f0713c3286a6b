"""What the scheduler does in one situation after another."""

import pytest

from optimist_scheduler.core.requests.suspicion import MOST_LOSSES
from optimist_scheduler.core.scheduler import Scheduler
from tests.scheduler.situation import SLOW, Situation, config, make_window, rows, set_window

pytestmark = pytest.mark.usefixtures("always_ahead")


def test_prompts_get_all_that_is_left_of_a_pass_chunk_after_chunk_without_a_result() -> None:
    situation = Situation(max_plans_in_flight=3)
    for handle, length in ((0, 15), (1, 20)):
        situation.add(handle, list(range(length)), 3)
    plans = [situation.send().num_known_tokens.tolist() for _ in range(3)]
    assert plans == [[15, 1], [1, 15], [1, 4]]
    situation.finish()


def test_drafts_stop_where_the_window_or_the_request_ends() -> None:
    situation = Situation()
    expected = situation.add_predicted(0, [1, 2], 7)
    scheduler = situation.scheduler
    assert set_window(scheduler, "r0", make_window(0, 0, expected[:3]))
    assert situation.step().num_draft_tokens.tolist() == [3]
    assert list(scheduler.find_unaligned()) == ["r0"]
    assert set_window(scheduler, "r0", make_window(4, 4, expected[4:]))
    assert list(scheduler.find_unaligned()) == []
    assert situation.step().num_draft_tokens.tolist() == [2]
    situation.finish()
    assert situation.finished(0).num_passes == 2


def test_drafts_never_preempt() -> None:
    situation = Situation(num_blocks=4, max_num_seqs=2)
    situation.add_predicted(0, [1], 8)
    situation.add(1, [2], 4)
    situation.finish()
    assert situation.scheduler.stats.num_preemptions == 0
    assert situation.finished(0).accepted_prediction_tokens > 0


def test_a_window_is_sent_once_and_again_after_readmission() -> None:
    situation = Situation()
    situation.add_predicted(0, [1, 2], 20)
    assert [len(situation.step().windows) for _ in range(2)] == [1, 0]
    situation.lose_worker()
    plan = situation.send()
    assert [slot for slot, _ in plan.windows] == plan.slots.tolist()
    situation.finish()


@pytest.mark.parametrize("at", [0, 2])
def test_no_draft_is_planned_once_the_output_has_left_the_window(at: int) -> None:
    situation = Situation(SLOW)
    expected = situation.add_predicted(0, [1, 2], 20)
    situation.propose(0, wrong_at=at)
    assert situation.send().num_draft_tokens.tolist() == [4]
    assert rows(situation.answer()) == {0: expected[: at + 1]}
    assert list(situation.scheduler.find_unaligned()) == ["r0"]
    assert situation.send().num_draft_tokens.tolist() == [0]
    situation.finish()


def test_drafts_share_budget_and_blocks_with_every_row() -> None:
    situation = Situation(max_num_batched_tokens=7, num_blocks=12, block_size=1, max_num_seqs=2)
    for handle in (0, 1):
        situation.add(handle, [1], 8, predicted_token_ids=situation.foresee([1], 8))
    situation.step()
    for handle in (0, 1):
        situation.propose(handle)
    assert situation.step().num_draft_tokens.tolist() == [4, 1]
    # Six and three tokens are computed. Of three free blocks known tokens need two, and the
    # older row has one token left to draft.
    plan = situation.send()
    assert plan.num_known_tokens.tolist() == [1, 1]
    assert plan.num_draft_tokens.tolist() == [1, 0]
    situation.finish()


# Requests that leave one scheduler and go on at another, and what losses end.


def test_a_request_that_is_shortened_by_a_small_worker_is_not_so_by_the_next() -> None:
    large = Situation()
    large.add(1, [1, 2, 3], 40)
    large.step()
    (request,) = large.scheduler.evacuate()
    small = Scheduler(config(num_blocks=4))
    assert small.adopt(request) is None
    assert request.max_length == 16
    (request,) = small.evacuate()
    assert large.scheduler.adopt(request) is None
    assert request.max_length == 43
    large.worker.restart()
    large.finish()


def test_new_tokens_make_losses_forgotten_and_who_waits_has_none() -> None:
    situation = Situation(max_num_seqs=1)
    situation.add(1, [1, 2], 9)
    situation.add(2, [3], 9)
    for _ in range(MOST_LOSSES + 2):
        situation.step()
        situation.send()
        situation.lose_worker()
    situation.finish()
