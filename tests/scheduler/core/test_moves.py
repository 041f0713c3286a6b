"""Requests that leave one scheduler and go on at another."""

from typing import Any

import pytest

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.scheduler import MAX_LOSSES, PauseMode, Scheduler
from optimist_scheduler.core.values import FinishReason, RejectionError
from tests.scheduler.drive import NOW, config, fake_worker
from tests.scheduler.situation import Situation


def move(one: Situation, other: Situation) -> None:
    """Loses the worker of one situation; the other adopts what it had."""
    one.sent.clear()
    one.worker.restart()
    for request in one.scheduler.evacuate():
        assert other.scheduler.adopt(request) is None
        other.expected[request.handle] = one.expected.pop(request.handle)
        other._news[request.handle] = one._news[request.handle]
        other.got.tokens[request.handle] = one.got.tokens.pop(request.handle, [])
    assert one.scheduler.num_running == one.scheduler.num_waiting == 0
    assert one.scheduler.num_free_blocks == one.config.num_blocks
    one.scheduler.check_integrity()


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_a_request_goes_on_with_its_text_and_account(num_steps: int) -> None:
    one = Situation(max_plans_in_flight=2)
    other = Situation(max_plans_in_flight=1, block_size=8)
    one.add_predicted(1, [1, 2, 3], 20)
    one.add(2, [4], 20)
    for _ in range(num_steps):
        one.step()
    one.fill()
    move(one, other)
    other.finish()
    finished = other.finished(1)
    by_source = finished.num_tokens_by_source
    assert sum(by_source) == 20
    assert by_source[DraftSource.PREDICTION] == finished.accepted_prediction_tokens > 10
    assert finished.num_passes + sum(by_source[1:]) == 20
    assert other.finished(2).num_passes == 20


def test_requests_that_came_first_go_first_wherever_they_came() -> None:
    one, other = Situation(max_num_seqs=1), Situation(max_num_seqs=1)
    for handle, situation in ((1, one), (2, other), (3, one), (4, other), (5, one)):
        situation.scheduler._num_added = handle - 1
        situation.add(handle, [handle], 3)
    one.step()
    move(one, other)
    waiting = other.scheduler._state.waiting.requests
    assert [request.handle for request in waiting] == [1, 2, 3, 4, 5]
    other.finish()
    assert list(other.got.ended) == [1, 2, 3, 4, 5]


def test_as_many_are_adopted_as_there_are_and_no_more_are_added() -> None:
    one, other = Situation(), Situation()
    for handle in range(8):
        one.add(handle, [handle], 3)
        other.add(10 + handle, [handle], 3)
    move(one, other)
    assert other.scheduler.num_waiting == 16
    with pytest.raises(RejectionError, match="16 requests wait already"):
        other.add(30, [1], 1)
    other.finish()


def test_a_pause_holds_for_what_is_adopted() -> None:
    one, other = Situation(), Situation()
    one.add(1, [1], 5)
    one.step()
    other.scheduler.pause(PauseMode.WAIT)
    move(one, other)
    assert other.scheduler.is_quiet
    assert other.scheduler.schedule(NOW) is None
    other.scheduler.resume()
    other.finish()


def test_blocks_of_another_size_share_only_what_is_equal() -> None:
    values: dict[str, Any] = {"enable_prefix_caching": True, "max_num_batched_tokens": 64}
    one = Situation(block_size=4, **values)
    other = Situation(block_size=8, max_num_seqs=1, **values)
    first = [1, 2, 3, 4]
    for handle, rest in ((1, 5), (2, 6)):
        one.add(handle, [*first, *[rest] * 20], 6)
    one.step()
    move(one, other)
    other.finish()


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
    large.sent.clear()
    large.worker.restart()
    large.finish()


def test_a_request_that_ends_every_worker_ends_itself() -> None:
    bounds = config()
    schedulers = [Scheduler(bounds) for _ in range(2)]
    situation = Situation()
    situation.add(1, [1, 2], 9)
    situation.step()
    (request,) = situation.scheduler.evacuate()
    for number in range(MAX_LOSSES):
        scheduler = schedulers[number % 2]
        assert scheduler.adopt(request) is None
        assert scheduler.schedule(NOW) is not None
        (request,) = scheduler.evacuate()
    ended = schedulers[1].adopt(request)
    assert ended is not None
    assert ended.finished.reason is FinishReason.ERROR
    assert ended.finished.message.startswith("the worker was lost 5 times while it worked on this")
    assert sum(ended.finished.num_tokens_by_source) == 1


def test_new_tokens_make_losses_forgotten() -> None:
    bounds = config()
    situation = Situation()
    situation.add(1, [1, 2], 9)
    for _ in range(MAX_LOSSES + 2):
        situation.step()
        situation.send()
        situation.sent.clear()
        (request,) = situation.scheduler.evacuate()
        situation.worker, situation.scheduler = fake_worker(bounds), Scheduler(bounds)
        assert situation.scheduler.adopt(request) is None
    situation.finish()
