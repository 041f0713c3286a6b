"""Requests that end their workers are found out: they end, and all others say what they must."""

import re
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes
from optimist_common.network.endpoints import Peer
from optimist_scheduler.core.base.values import Ended, FinishReason
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.requests.suspicion import (
    LOSSES_AT_LAST_ALONE,
    LOSSES_TOGETHER,
    MOST_LOSSES,
    Suspicion,
)
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker
from optimist_scheduler.workers.dispatcher import Dispatcher, Worker
from optimist_scheduler.workers.translate import step_result
from tests.scheduler.fake_worker import FakeWorker, expected_output
from tests.scheduler.situation import Collected, Situation, check_slots

VOCAB_SIZE, MAX_LENGTH = 50, 64
REASON = r"the worker was lost [345] times while it worked on this request(, at last on .*)?"


@dataclass
class Place:
    """A worker that ends when a poisonous request has come to some length."""

    worker: Worker
    fake: FakeWorker
    sent: list[worker_pb2.ExecuteRequest] = field(default_factory=list)


class Farm:
    """Workers of one scheduler."""

    def __init__(
        self,
        num_workers: int,
        poisons: dict[str, int],
        options: dict[str, int],
        sizes: dict[str, Any],
    ) -> None:
        self._poisons = poisons
        self._settings = SchedulerSettings(max_num_waiting=99, **options)
        self.dispatcher, self.got = Dispatcher(), Collected()
        self.num_losses = 0
        self.places: list[Place] = []
        for number in range(num_workers):
            fake = FakeWorker(vocab_size=VOCAB_SIZE, max_model_len=MAX_LENGTH, **sizes)
            place = Place(Worker(Peer(f"w{number}:1", f"w{number}")), fake)
            self.places.append(place)
            self._reach(place)

    def _reach(self, place: Place) -> None:
        absent = [each.worker for each in self.places if not each.worker.is_connected]
        requests = self.dispatcher.evacuate(
            [each for each in absent if each.has_scheduler and each in self.dispatcher.members]
        )
        place.fake.restart()
        place.sent.clear()
        assert not place.worker.begin(describe_worker(place.fake.description, self._settings))
        self.dispatcher.join(place.worker)
        self._end(self.dispatcher.adopt(requests))

    def _end(self, ended: list[Ended]) -> None:
        for each in ended:
            assert each.handle not in self.got.ended
            self.got.ended[each.handle] = each

    def _lose(self, place: Place) -> None:
        self.num_losses += 1
        place.worker.is_connected = False
        self._end(self.dispatcher.adopt(self.dispatcher.evacuate([place.worker])))

    def turn(self, random: Random) -> None:
        """Lets one worker do something."""
        place = random.choice(self.places)
        scheduler = place.worker.scheduler
        if not place.worker.is_connected:
            self._reach(place)
        elif place.sent and (random.random() < 0.5 or not scheduler.can_send):
            self._run(place, place.sent.pop(0))
        elif scheduler.can_send and (plan := place.worker.schedule(0.0)) is not None:
            place.sent.append(plan)
        else:
            place.worker.prepare()
        check_slots(scheduler)

    def _run(self, place: Place, plan: worker_pb2.ExecuteRequest) -> None:
        """Lets a worker run a plan."""
        message = place.fake.execute(plan)
        for slot in from_bytes(message.slots).tolist():
            row = place.fake.rows[slot]
            if len(row.token_ids) >= self._poisons.get(row.request_id, 999):
                self._lose(place)
                return
        self.got.take(place.worker.settle(step_result(message), message))


OPTIONS = st.fixed_dictionaries(
    {"max_plans_in_flight": st.integers(1, 3), "enable_prefix_caching": st.booleans()}
)
SIZES = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(16, 40),
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.integers(6, 40),
    }
)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.none() | st.integers(0, 12), min_size=1, max_size=9),
    OPTIONS,
    SIZES,
    st.integers(0, 2**32),
)
def test_exactly_those_end_that_end_workers(
    num_workers: int,
    poisonous_after: list[int | None],
    options: dict[str, int],
    sizes: dict[str, int],
    seed: int,
) -> None:
    random = Random(seed)
    prompts = [[handle, 7, *range(3 * handle)] for handle in range(len(poisonous_after))]
    poisons = {
        f"r{handle}": len(prompts[handle]) + number
        for handle, number in enumerate(poisonous_after)
        if number is not None
    }
    farm = Farm(num_workers, poisons, options, sizes)
    for handle, prompt in enumerate(prompts):
        farm.dispatcher.add(NewRequest(f"r{handle}", prompt, 12, handle=handle), 0.0)
    for _ in range(6_000):
        if len(farm.got.ended) == len(prompts):
            break
        farm.turn(random)
    assert len(farm.got.ended) == len(prompts)
    for handle, prompt in enumerate(prompts):
        finished, text = farm.got.ended[handle].finished, farm.got.tokens.get(handle, [])
        whole = expected_output(prompt, VOCAB_SIZE, len(prompt) + 12, set())
        assert text == whole[: len(text)]
        if f"r{handle}" in poisons:
            assert finished.reason is FinishReason.ERROR
            assert re.fullmatch(REASON, finished.message)
        else:
            assert finished.reason is FinishReason.LENGTH
            assert text == whole
    assert farm.num_losses <= LOSSES_AT_LAST_ALONE * len(poisons)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.booleans()), min_size=1))
def test_losses_count_that_one_length_explains(losses: list[tuple[int, int, bool]]) -> None:
    suspicion, length, spans = Suspicion(), 3, list[range]()
    for num_gained, num_in_flight, is_alone in losses:
        length += num_gained
        spans.append(range(length + 1, length + max(num_in_flight, 1) + 1))
        suspicion.note_loss(length, length + num_in_flight, is_alone=is_alone)
        most = max(sum(place in span for span in spans) for place in spans[-1])
        assert suspicion.num_losses == most
        assert suspicion.must_run_alone == (most >= LOSSES_TOGETHER)
        assert suspicion.is_proven == (most >= (LOSSES_AT_LAST_ALONE if is_alone else MOST_LOSSES))
    suspicion.note_length(max(span[-1] for span in spans))
    assert suspicion.num_losses == 0


def test_a_request_that_gets_on_does_not_end_for_its_workers() -> None:
    situation = Situation(max_plans_in_flight=2, max_num_batched_tokens=64)
    situation.add(1, [1, 7, 1], 40)
    for _ in range(6):
        for _ in range(5):
            situation.fill()
            situation.answer()
        situation.lose_worker()
    situation.finish()


@pytest.mark.parametrize("depth", [1, 3])
def test_suspects_run_one_after_the_other_while_all_others_wait(depth: int) -> None:
    situation = Situation(max_plans_in_flight=depth)
    for handle in range(3):
        situation.add(handle, [handle, 5], 20)
    for _ in range(LOSSES_TOGETHER):
        situation.fill()
        situation.lose_worker()
    situation.add(3, [9], 20)
    alone: list[set[int]] = []
    while True:
        situation.fill()
        if not situation.scheduler._state.waiting.suspects:
            break
        alone.append({slot for plan in situation.sent for slot in plan.slots.tolist()})
        assert situation.text(3) == []
        situation.answer()
    assert len(alone) >= 3
    assert all(len(slots) == 1 for slots in alone)
    assert min(len(situation.text(handle)) for handle in range(3)) >= 1
    situation.finish()
