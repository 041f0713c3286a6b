"""Several schedulers with workers of their own: placement, losses and moves at random."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from optimist_common.network.endpoints import Peer
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import write_sampling
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.plan import Plan
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.scheduler import MAX_LOSSES, PauseMode
from optimist_scheduler.core.values import Ended, FinishReason, RejectionError
from optimist_scheduler.workers.description import WorkerDescription
from optimist_scheduler.workers.dispatcher import Dispatcher, Worker
from optimist_scheduler.workers.translate import plan_message, step_result
from tests.scheduler.drive import fake_worker, make_window, rows
from tests.scheduler.fake_worker import expected_output
from tests.scheduler.received import Received

VOCAB_SIZE = 7
MAX_LENGTH = 40
MAX_WAITING = 4
SIZES = st.fixed_dictionaries(
    {
        # Each can hold any request, but not many of them.
        "block_size": st.sampled_from([2, 4, 5, 8]),
        "num_extra_blocks": st.integers(0, 10),
        "max_num_seqs": st.integers(1, 4),
        "max_num_batched_tokens": st.integers(4, 20),
        "multi_step_count": st.integers(1, 2),
    }
)


class DrivenWorker(Worker):
    """A worker, and the plans between it and its scheduler."""

    def __init__(self, peer: Peer, config: EngineConfig) -> None:
        super().__init__(peer)
        self.sent: list[Plan] = []
        self.reach(config)

    def reach(self, config: EngineConfig) -> None:
        """Begins anew, perhaps with other memory."""
        self.config, self.fake = config, fake_worker(config)
        message = self.fake.description
        assert not self.begin(WorkerDescription("", config, (), (), (), False, message))


class MovesMachine(RuleBasedStateMachine):
    @initialize(
        sizes=st.lists(SIZES, min_size=2, max_size=3),
        depth=st.integers(1, 3),
        policy=st.sampled_from(["fcfs", "priority"]),
        caches=st.booleans(),
    )
    def begin(self, sizes: list[dict[str, int]], **options: Any) -> None:
        self.options = {
            "max_plans_in_flight": options["depth"],
            "policy": options["policy"],
            "enable_prefix_caching": options["caches"],
            "num_speculative_tokens": 4,
            "max_num_waiting": MAX_WAITING,
        }
        self.dispatcher = Dispatcher()
        self.workers: list[DrivenWorker] = []
        for number, size in enumerate(sizes, 1):
            config = self.config_of(size)
            peer = Peer(f"w{number}:1", f"w{number}")
            worker = DrivenWorker(peer, config)
            self.workers.append(worker)
            self.dispatcher.join(worker)
        self.now = 0.0
        self.news: dict[str, NewRequest] = {}
        self.live: dict[str, list[int]] = {}
        self.reported: dict[str, Received] = {}
        self.num_passes: dict[str, int] = {}

    def config_of(self, size: dict[str, int]) -> EngineConfig:
        values = dict(size)
        values["num_blocks"] = -(-MAX_LENGTH // values["block_size"])
        values["num_blocks"] += values.pop("num_extra_blocks")
        return EngineConfig(
            vocab_size=VOCAB_SIZE, max_model_len=MAX_LENGTH, **values, **self.options
        )

    def truth(self, new: NewRequest) -> list[int]:
        length = min(len(new.prompt_token_ids) + new.max_tokens, MAX_LENGTH)
        return expected_output(
            new.prompt_token_ids, VOCAB_SIZE, length, set(new.stop_token_ids), new.min_tokens
        )

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        max_tokens=st.integers(1, 25),
        stops=st.lists(st.integers(0, 6), max_size=1),
        min_tokens=st.integers(0, 5),
        num_given=st.sampled_from([0, 0, 0, 1, 5]),
        is_predicted=st.booleans(),
        priority=st.integers(0, 2),
        num_logprobs=st.sampled_from([None, None, 2]),
        num_prompt_logprobs=st.sampled_from([None, None, 3]),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        num_given: int,
        is_predicted: bool,
        num_logprobs: int | None,
        num_prompt_logprobs: int | None,
        stops: list[int],
        **values: Any,
    ) -> None:
        handle = len(self.news) + 1
        values["priority"] *= self.workers[0].scheduler.config.policy == "priority"
        if num_given:
            # Of what it has, no log-probabilities are reported to it.
            num_logprobs = num_prompt_logprobs = None
        sampling = SamplingParams(
            num_logprobs=num_logprobs, num_prompt_logprobs=num_prompt_logprobs
        )
        new = NewRequest(
            f"r{handle}",
            prompt,
            max_tokens,
            stop_token_ids=stops,
            sampling=sampling,
            sampling_message=write_sampling(sampling),
            handle=handle,
            **values,
        )
        text = self.truth(new)
        given = text[: min(num_given, len(text) - 1)]
        predicted = expected_output(prompt, VOCAB_SIZE, len(prompt) + 30, set())
        new = NewRequest(
            **{name: getattr(new, name) for name in NewRequest.__slots__}
            | {
                "predicted_token_ids": predicted if is_predicted else [],
                "output_token_ids": given,
                "is_followed": is_predicted,
            }
        )
        able = [each for each in self.workers if each.is_connected] or self.workers
        if all(each.scheduler.num_waiting >= MAX_WAITING for each in able):
            with pytest.raises(RejectionError, match="requests wait already"):
                self.dispatcher.add(new, self.now)
            return
        self.dispatcher.add(new, self.now)
        self.news[new.request_id], self.live[new.request_id] = new, list(given)
        self.reported[new.request_id] = Received(new)
        self.num_passes[new.request_id] = 0

    @precondition(lambda self: self.live)
    @rule(data=st.data(), chance=st.integers(0, 3))
    def abort(self, data: Any, chance: int) -> None:
        if chance:
            return
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        finished = self.dispatcher.abort(request_id)
        assert finished is not None
        self.check_account(request_id, Ended(0, 0, request_id, finished))
        assert self.dispatcher.abort(request_id) is None

    @precondition(lambda self: self.live)
    @rule(data=st.data(), priority=st.integers(0, 3))
    def set_priority(self, data: Any, priority: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        assert self.dispatcher.set_priority(request_id, priority)

    @rule(mode=st.sampled_from([PauseMode.KEEP, PauseMode.WAIT]), chance=st.integers(0, 3))
    def pause(self, mode: PauseMode, chance: int) -> None:
        if not chance:
            assert self.dispatcher.pause(mode) == []
            assert all(each.scheduler.is_paused for each in self.workers)

    @rule()
    def resume(self) -> None:
        self.dispatcher.resume()
        assert not self.dispatcher.is_quiet

    @rule(number=st.integers(0, 2), num_wrong=st.integers(0, 2))
    def send(self, number: int, num_wrong: int) -> None:
        worker = self.workers[number % len(self.workers)]
        if not worker.is_connected or not worker.scheduler.can_send:
            return
        for request_id in worker.scheduler.find_unaligned():
            self.propose(request_id, num_wrong)
        plan = worker.scheduler.schedule(self.now)
        if plan is not None:
            worker.sent.append(plan)
        worker.scheduler.prepare()

    def propose(self, request_id: str, num_wrong: int) -> None:
        base = len(self.live[request_id])
        tokens = [*self.news[request_id].predicted_token_ids[base : base + 6]]
        for place in range(min(num_wrong, len(tokens))):
            tokens[-1 - place] = (tokens[-1 - place] + 1) % VOCAB_SIZE
        self.dispatcher.set_window(request_id, make_window(base, base, tokens))

    @rule(number=st.integers(0, 2))
    def answer(self, number: int) -> None:
        worker = self.workers[number % len(self.workers)]
        if worker.sent:
            self.take(worker, worker.fake.execute(plan_message(worker.sent.pop(0))))
            if not worker.sent and worker.fake.can_repeat and worker.fake.is_busy:
                self.take(worker, worker.fake.repeat())

    def take(self, worker: DrivenWorker, response: Any) -> None:
        outputs = worker.scheduler.settle(step_result(response))
        for reported in outputs.logprobs:
            self.reported[f"r{reported.handle}"].add(reported.logprobs)
        for handle, tokens in rows(outputs).items():
            request_id = f"r{handle}"
            self.live[request_id] += tokens
            self.num_passes[request_id] += 1
            self.reported[request_id].check(self.live[request_id])
        for ended in outputs.ended:
            assert self.live[ended.request_id] == self.truth(self.news[ended.request_id])
            self.check_account(ended.request_id, ended)

    def check_account(self, request_id: str, ended: Ended) -> None:
        new, text, finished = self.news[request_id], self.live.pop(request_id), ended.finished
        assert sum(finished.num_tokens_by_source) == len(text) - len(new.output_token_ids)
        assert finished.num_passes == self.num_passes[request_id]
        assert finished.accepted_prediction_tokens <= len(text)
        assert finished.num_cached_tokens <= len(new.prompt_token_ids)

    # Losses.

    @rule(number=st.integers(0, 2), is_run=st.booleans(), chance=st.integers(0, 2))
    def lose(self, number: int, is_run: bool, chance: int) -> None:
        """The stream broke, before or after the worker ran a plan."""
        worker = self.workers[number % len(self.workers)]
        if chance or not worker.is_connected:
            return
        if worker.sent and is_run:
            worker.fake.execute(plan_message(worker.sent[0]))
        worker.sent.clear()
        worker.fake.restart()
        worker.is_connected = False
        self.place(self.dispatcher.evacuate([worker]))
        if any(each.is_connected for each in self.workers):
            assert worker.scheduler.num_running + worker.scheduler.num_waiting == 0
        assert worker.scheduler.num_free_blocks == worker.config.num_blocks

    def place(self, requests: list[Any]) -> None:
        assert [each.order for each in requests] == sorted(each.order for each in requests)
        for request in requests:
            text = self.live[request.request_id]
            prompt = self.news[request.request_id].prompt_token_ids
            assert request.token_ids.tolist() == [*prompt, *text]
        for ended in self.dispatcher.adopt(requests):
            assert ended.finished.reason is FinishReason.ERROR
            assert ended.finished.message.startswith(f"the worker was lost {MAX_LOSSES} times")
            self.check_account(ended.request_id, ended)

    @rule(number=st.integers(0, 2), size=SIZES)
    def come_back(self, number: int, size: dict[str, int]) -> None:
        """Other memory, perhaps, and what waits for any worker goes on."""
        worker = self.workers[number % len(self.workers)]
        if worker.is_connected:
            return
        absent = [each for each in self.workers if not each.is_connected]
        requests = self.dispatcher.evacuate(absent)
        worker.reach(self.config_of(size))
        self.place(requests)
        assert all(each.is_connected or not each.scheduler.num_waiting for each in self.workers)

    @rule()
    def let_time_pass(self) -> None:
        self.now += 1

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        found: list[str] = []
        for worker in self.workers:
            worker.scheduler.check_integrity()
            waiting = worker.scheduler._state.waiting.requests
            assert all(one.order < other.order for one, other in pairwise(waiting))
            found += worker.scheduler._requests
            if self.dispatcher.is_paused:
                assert worker.scheduler.is_paused
        assert sorted(found) == sorted(self.live)
        assert self.dispatcher.num_running + self.dispatcher.num_waiting == len(self.live)

    def teardown(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        self.dispatcher.resume()
        for number in range(len(self.workers)):
            size = {"block_size": 4, "num_extra_blocks": 0, "max_num_seqs": 2}
            size |= {"max_num_batched_tokens": 16, "multi_step_count": 1}
            self.come_back(number=number, size=size)
        for _ in range(5_000):
            if not self.live and not any(worker.sent for worker in self.workers):
                break
            for number in range(len(self.workers)):
                self.send(number=number, num_wrong=0)
                self.answer(number=number)
        assert not self.live
        for worker in self.workers:
            assert worker.scheduler.num_free_blocks == worker.config.num_blocks


MovesMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestRandomMoves = MovesMachine.TestCase
