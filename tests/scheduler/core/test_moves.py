"""Requests that leave one scheduler and go on at another, and what losses end.

That texts and accounts go on is in test_random_commands.py, smaller workers are in test_fleet.py.
"""

from optimist_scheduler.core.base.values import FinishReason
from optimist_scheduler.core.scheduler import MAX_LOSSES, Scheduler
from tests.scheduler.situation import NOW, Situation, config


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


def test_a_request_that_ends_every_worker_ends_itself() -> None:
    situation = Situation()
    schedulers = [Scheduler(situation.config) for _ in range(2)]
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


def test_new_tokens_make_losses_forgotten_and_who_waits_has_none() -> None:
    situation = Situation(max_num_seqs=1)
    situation.add(1, [1, 2], 9)
    situation.add(2, [3], 9)
    for _ in range(MAX_LOSSES + 2):
        situation.step()
        situation.send()
        situation.lose_worker()
    situation.finish()
