"""Which of several workers takes a request, and when one comes again that none takes."""

from typing import Any

import pytest

from optimist_common.columns import to_bytes
from optimist_common.network.endpoints import Peer
from optimist_scheduler.core.base.values import FinishReason, RejectionError
from optimist_scheduler.core.requests import pace
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.scheduler import CAUTION
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker
from optimist_scheduler.workers.dispatcher import Dispatcher, Worker
from tests.scheduler.fake_worker import FakeWorker


class Fleet:
    """Workers with one slot each and passes of 100 ms, by the most tokens that they hold."""

    def __init__(self, *max_model_lens: int, **options: Any) -> None:
        self.dispatcher = Dispatcher()
        self.workers: list[Worker] = []
        settings = SchedulerSettings(num_speculative_tokens=0, **options)
        for number, length in enumerate(max_model_lens):
            worker = Worker(Peer(f"w{number}:1", f"w{number}"))
            sizes: dict[str, Any] = {"vocab_size": 50, "max_num_seqs": 1, "num_blocks": 500}
            fake = FakeWorker(
                **sizes, max_model_len=length, block_size=4, max_num_batched_tokens=64
            )
            description = fake.description
            description.cost_num_tokens, description.cost_us = (
                to_bytes([1, 64]),
                to_bytes([100_000, 110_000]),
            )
            worker.begin(describe_worker(description, settings))
            self.dispatcher.join(worker)
            self.workers.append(worker)

    def add(self, handle: int, max_tokens: int = 20, now: float = 0.0) -> None:
        new = NewRequest(f"r{handle}", [1, 2, 3], max_tokens, handle=handle)
        self.dispatcher.add(new, now)
        for worker in self.workers:
            worker.schedule(now)

    def refused(self, handle: int, max_tokens: int = 20, now: float = 0.0) -> float:
        """Returns in how many seconds a request that is refused may come again."""
        with pytest.raises(RejectionError, match=r"try again in [0-9]+ seconds$") as caught:
            self.add(handle, max_tokens, now)
        assert caught.value.finished.reason is FinishReason.OVERLOADED
        return caught.value.finished.retry_seconds

    def counts(self) -> list[int]:
        return [
            worker.scheduler.num_running + worker.scheduler.num_waiting for worker in self.workers
        ]


def test_a_request_goes_to_another_worker_before_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Passes take as long as they were timed.
    monkeypatch.setattr(pace, "FIRST_SLOWNESS", 1.0)
    fleet = Fleet(100, 100, max_wait_seconds=3.0 / CAUTION)
    # One runs for two seconds, and one more waits as long; a third would wait for four.
    for handle in range(4):
        fleet.add(handle)
    assert fleet.counts() == [2, 2]
    # A worker has room after a second, and one of the two for the next one half a turn later.
    seconds = [fleet.refused(handle) for handle in range(4, 8)]
    assert seconds == [pytest.approx(1 + number, abs=0.3) for number in range(4)]


def test_a_smaller_worker_is_no_way_out() -> None:
    fleet = Fleet(100, 40, max_wait_seconds=3.0 / CAUTION)
    fleet.add(0, 80)
    assert fleet.counts() == [1, 0]
    # It would have to end there before its time.
    assert fleet.refused(3, 80) > 3
    fleet.add(4, 20)


def test_workers_that_are_lost_do_not_take_what_others_refuse() -> None:
    fleet = Fleet(100, 100, max_wait_seconds=3.0 / CAUTION)
    fleet.workers[1].is_connected = False
    for handle in range(2):
        fleet.add(handle)
    assert fleet.counts()[0] == 2
    assert fleet.refused(3) >= 1
