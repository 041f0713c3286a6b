"""Records two workers with random commands, results out of turn, and losses."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from optimist.proposer.v1 import proposer_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import floats_to_bytes, to_bytes
from optimist_common.network.endpoints import Peer
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import write_sampling
from optimist_scheduler.core.results.read import ResultError
from optimist_scheduler.core.scheduler import PauseMode
from optimist_scheduler.core.values import RejectionError
from optimist_scheduler.core.width.drafter import Drafter
from optimist_scheduler.journal import Journal
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker
from optimist_scheduler.workers.dispatcher import Dispatcher, Worker
from optimist_scheduler.workers.translate import new_request, step_result
from tests.scheduler.fake_worker import FakeWorker, expected_output
from tests.scheduler.situation import make_window

VOCAB_SIZE = 7
STEP_NS = 1_000_000


class RecordedWorker(Worker):
    """A worker, and the plans between it and its scheduler."""

    def __init__(self, number: int, journal: Journal, drafter: Drafter | None) -> None:
        super().__init__(Peer(f"worker:{number}", "worker"), journal)
        self.fake = FakeWorker(
            VOCAB_SIZE, 40, num_blocks=14, costs=((1, 900), (16, 1200)), drafter=drafter
        )
        if drafter is not None:
            drafter_us = [90 + 10 * level for level in range(drafter.max_depth)]
            self.fake.description.drafter_us = to_bytes(drafter_us)
        self.plans: list[worker_pb2.ExecuteRequest] = []
        self.results: list[worker_pb2.ExecuteResponse] = []


class Recording:
    """A recorded scheduler, driven by chance."""

    def __init__(
        self,
        path: Path,
        seed: int,
        max_mib: int = 16,
        drafter: Drafter | None = None,
        **values: Any,
    ) -> None:
        self._random = Random(seed)
        self._settings = SchedulerSettings(
            policy="priority",
            max_num_waiting=5,
            enable_prefix_caching=True,
            num_speculative_tokens=4,
            starvation_seconds=3,
            **{"max_plans_in_flight": 1, **values},
        )
        self.journal = Journal(str(path), max_mib)
        self.journal.begin(self._settings.decisive)
        self._dispatcher = Dispatcher(self.journal)
        self.workers = [RecordedWorker(number, self.journal, drafter) for number in range(2)]
        for worker in self.workers:
            self._reach(worker)
        self._now = 0.5
        self._adds: dict[str, scheduler_pb2.Add] = {}
        self._num_output: dict[str, int] = {}
        """Tokens of the requests that go on."""
        self.num_plans = 0

    def run(self, num_steps: int) -> None:
        """Makes as many steps, each with some commands before it; then closes the journal."""
        commands = (
            [self.add] * 12 + [self.set_window] * 8 + [self.abort, self.set_priority, self.pause]
        )
        rare = [self.lose_worker, self.settle_again, self.settle_nonsense]
        for _ in range(num_steps):
            self._now += self._random.random() / 7
            for _ in range(self._random.randrange(5)):
                self._random.choice(commands)()
            if self._random.random() < 0.04:
                self._random.choice(rare)()
            if self._random.random() < 0.3:
                self._dispatcher.resume()
            for worker in self.workers:
                self.step(worker)
        for worker in self.workers:
            worker.end_journal()
        self.journal.close()

    def add(self) -> None:
        handle = len(self._adds) + 1
        prompt = [self._random.randrange(2) for _ in range(self._random.randrange(45))]
        predicted = expected_output(prompt, VOCAB_SIZE, len(prompt) + 20, set())
        sampling = SamplingParams(
            temperature=self._random.random(),
            num_logprobs=self._random.choice([None, 0, 2]),
            num_prompt_logprobs=self._random.choice([None, 3]),
        )
        add = scheduler_pb2.Add(
            handle=handle,
            request_id=f"r{handle}",
            prompt_token_ids=to_bytes(prompt),
            max_tokens=self._random.randrange(1, 30),
            predicted_token_ids=to_bytes(predicted if self._random.random() < 0.7 else []),
            stop_token_ids=to_bytes([3] if self._random.random() < 0.3 else []),
            min_tokens=self._random.randrange(4),
            sampling=write_sampling(sampling),
            wants_prediction_positions=self._random.random() < 0.5,
            priority=self._random.randrange(3),
            cache_salt=self._random.choice(["", "ä"]),
            max_draft_tokens=self._random.choice([None, 0, 2]),
            output_token_ids=to_bytes(predicted[: self._random.choice([0, 0, 0, 4])]),
        )
        self._adds[add.request_id] = add
        new = new_request(add, owner=self._random.randrange(1, 3))
        try:
            self._dispatcher.add(replace(new, is_followed=handle % 5 > 0), self._now, add)
        except RejectionError:
            return

    def set_window(self) -> None:
        request_id = self._draw()
        if self._num_output and self._random.random() < 0.7:
            request_id = self._random.choice(list(self._num_output))
        predicted: list[int] = []
        if request_id in self._adds:
            new = new_request(self._adds[request_id], 0)
            predicted = list(new.predicted_token_ids)
        base = self._num_output.get(request_id, self._random.randrange(12))
        tokens = predicted[base : base + self._random.randrange(10)]
        others = []
        if len(tokens) > 2 and self._random.random() < 0.5:
            # The window is wrong at its second token, the alternative right.
            others = [(1, base + 1, tokens[1:])]
            tokens = [tokens[0], (tokens[1] + 1) % VOCAB_SIZE, *tokens[2:]]
        num_nodes = len(tokens) + sum(len(other) for _, _, other in others)
        values = [0.9**node for node in range(num_nodes)] if len(tokens) % 2 else []
        window = make_window(base, base, tokens, others, values)
        message = proposer_pb2.Window(
            request_id=request_id,
            base=base,
            token_ids=to_bytes(window.tree.token_ids),
            parents=b"" if window.tree.parents is None else to_bytes(window.tree.parents),
            prediction_positions=to_bytes(window.positions),
            values=floats_to_bytes(window.values),
        )
        self._dispatcher.take_window(message)

    def abort(self) -> None:
        self._dispatcher.abort(self._draw())

    def set_priority(self) -> None:
        self._dispatcher.set_priority(self._draw(), self._random.randrange(4))

    def pause(self) -> None:
        if self._random.random() < 0.2:
            self._dispatcher.pause(self._random.choice(list(PauseMode)))

    def lose_worker(self) -> None:
        worker = self._random.choice(self.workers)
        worker.is_connected = False
        self._dispatcher.adopt(self._dispatcher.evacuate([worker]))
        worker.plans.clear()
        worker.results.clear()
        worker.fake.restart()
        self._reach(worker)

    def _reach(self, worker: Worker) -> None:
        assert isinstance(worker, RecordedWorker)
        worker.begin(describe_worker(worker.fake.description, self._settings))
        self._dispatcher.join(worker)

    def settle_again(self) -> None:
        worker = self._random.choice(self.workers)
        if worker.results:
            message = self._random.choice(worker.results)
            worker.settle(step_result(message), message)

    def settle_nonsense(self) -> None:
        worker = self._random.choice(self.workers)
        message = worker_pb2.ExecuteResponse(sequence=10_000)
        try:
            worker.settle(step_result(message), message)
        except ResultError:
            return
        raise AssertionError("a result of the future was settled")

    def step(self, worker: RecordedWorker) -> None:
        while worker.scheduler.can_send and (plan := worker.schedule(self._now)) is not None:
            self.num_plans += 1
            worker.plans.append(plan)
        if self._random.random() < 0.8:
            worker.prepare()
        if worker.plans:
            self._settle(worker, worker.fake.execute(worker.plans.pop(0)))
            while worker.fake.can_repeat and self._random.random() < 0.5:
                self._settle(worker, worker.fake.repeat())

    def _settle(self, worker: RecordedWorker, message: worker_pb2.ExecuteResponse) -> None:
        message.step_ns = STEP_NS + self._random.randrange(STEP_NS)
        worker.results.append(message)
        outputs = worker.settle(step_result(message), message)
        counts = zip(outputs.handles.tolist(), outputs.num_tokens.tolist(), strict=True)
        for handle, count in counts:
            request_id = f"r{handle}"
            self._num_output[request_id] = self._num_output.get(request_id, 0) + count
        for ended in outputs.ended:
            self._num_output.pop(ended.request_id, None)

    def _draw(self) -> str:
        """Returns a request, which may be over or never have been."""
        return f"r{self._random.randint(max(1, len(self._adds) - 8), len(self._adds) + 1)}"
