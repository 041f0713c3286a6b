"""Which of several workers takes a request, and when one comes again that none takes."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from optimist_common.columns import to_bytes
from optimist_common.network.endpoints import Peer
from optimist_scheduler.core import placement
from optimist_scheduler.core.base.values import FinishReason, RejectionError
from optimist_scheduler.core.placement import Placement, hash_beginning
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


LONG = list(range(300))


class Place(NamedTuple):
    """A worker without requests, by a name that stands for it."""

    name: str
    is_connected: bool
    scheduler: Any

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.name == other.name


def place(name: str, num_requests: int = 0, **values: Any) -> Place:
    is_connected = values.pop("is_connected", True)
    num_waiting = values.pop("num_waiting", 0)
    sizes = {"max_num_seqs": 10, "max_num_waiting": 8, "max_length": 100, **values}
    scheduler: Any = SimpleNamespace(
        num_running=num_requests - num_waiting,
        num_waiting=num_waiting,
        config=SimpleNamespace(**sizes),
    )
    return Place(name, is_connected, scheduler)


def choose(*places: Place, wanted: int = 20, **values: Any) -> str:
    return Placement[Place]().choose(places, 10, wanted, **values).name


def choose_of_two(
    chooser: Placement[Place], loads: tuple[int, int], prompt: list[int], salt: str = ""
) -> str:
    """Chooses of "a" and "b" by what each has to do."""
    places = [place("a", loads[0]), place("b", loads[1])]
    return chooser.choose(places, 10, 20, hash_beginning(prompt, salt)).name


def test_the_least_loaded_for_its_size_is_chosen() -> None:
    assert choose(place("a", 3), place("b", 2)) == "b"
    assert choose(place("a", 3), place("b", 2, max_num_seqs=5)) == "a"


def test_one_is_chosen_that_a_request_fits_to_its_end() -> None:
    assert choose(place("a", max_length=15), place("b", 9), wanted=20) == "b"
    assert choose(place("a", max_length=15), place("b", max_length=8), wanted=20) == "a"
    assert choose(place("a", max_length=8), place("b", is_connected=False)) == "b"
    assert choose(place("a", max_length=8), place("b", max_length=8, is_connected=False)) == "a"


def test_a_beginning_goes_where_it_was_until_the_load_is_clearly_more() -> None:
    chooser = Placement[Place]()
    assert choose_of_two(chooser, (0, 0), LONG) == "a"
    assert choose_of_two(chooser, (0, 0), LONG[1:]) == "b"
    for num_tokens, load in ((64, 5), (130, 5), (300, 5), (300, 0)):
        assert choose_of_two(chooser, (load, 0), LONG[:num_tokens]) == "a"
    # Shorter than a chunk, or of somebody else, it is no beginning.
    for prompt, salt in ((LONG[:63], ""), (LONG, "salt")):
        assert choose_of_two(chooser, (5, 0), prompt, salt) == "b"
    assert choose_of_two(chooser, (6, 0), LONG) == "b"


def test_no_more_is_remembered_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MAX_BEGINNINGS", 4)
    chooser = Placement[Place]()
    assert choose_of_two(chooser, (0, 1), LONG) == "a"
    for number in range(3):
        choose_of_two(chooser, (0, 9), [number] * 64)
    assert choose_of_two(chooser, (1, 0), LONG) == "a"
    for number in range(4):
        choose_of_two(chooser, (0, 9), [number] * 64, "x")
    assert choose_of_two(chooser, (1, 0), LONG) == "b"
