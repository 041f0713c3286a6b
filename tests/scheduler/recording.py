"""Records a scheduler with random commands, results out of turn, and losses of its worker."""

from pathlib import Path
from random import Random
from typing import Any

from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.requests.validate import NewRequest
from optimist_scheduler.core.results.check import ResultError
from optimist_scheduler.core.scheduler import PauseMode
from optimist_scheduler.core.values.output import RejectionError
from optimist_scheduler.journal.journal import Journal
from optimist_scheduler.journal.recorded_scheduler import RecordedScheduler
from optimist_scheduler.workers.translate import plan_message, step_result
from tests.scheduler.drive import config, fake_worker, make_window
from tests.scheduler.fake_worker import expected_output

VOCAB_SIZE = 7
STEP_NS = 1_000_000


class Recording:
    """A recorded scheduler and its worker, driven by chance."""

    def __init__(self, path: Path, seed: int, max_mib: int = 16, **values: Any) -> None:
        self._random = Random(seed)
        self._config = config(
            vocab_size=VOCAB_SIZE,
            max_model_len=40,
            num_blocks=14,
            max_num_waiting=5,
            enable_prefix_caching=True,
            policy="priority",
            draft_width="goodput",
            starvation_seconds=3,
            **values,
        )
        self.journal = Journal(str(path), max_mib)
        self.scheduler = RecordedScheduler(
            self._config, [(1, 900), (16, 1200)], self._drafter_us(90), self.journal
        )
        self._worker = fake_worker(self._config)
        self._now = 0.5
        self._news: dict[str, NewRequest] = {}
        self._num_output: dict[str, int] = {}
        """Tokens of the requests that go on."""
        self._plans: list[Any] = []
        self._settled: list[StepResult] = []
        self.num_plans = 0

    def run(self, num_steps: int) -> None:
        """Makes as many steps, each with some commands before it; then closes the log."""
        commands = (
            [self.add] * 6 + [self.set_window] * 4 + [self.abort, self.set_priority, self.pause]
        )
        rare = [self.lose_worker, self.settle_again, self.settle_nonsense]
        for _ in range(num_steps):
            self._now += self._random.random() / 7
            for _ in range(self._random.randrange(3)):
                self._random.choice(commands)()
            if self._random.random() < 0.04:
                self._random.choice(rare)()
            if self._random.random() < 0.3:
                self.scheduler.resume()
            self.step()
        self.scheduler.close()

    def add(self) -> None:
        number = len(self._news) + 1
        prompt = [self._random.randrange(2) for _ in range(self._random.randrange(45))]
        predicted = expected_output(prompt, VOCAB_SIZE, len(prompt) + 20, set())
        new = NewRequest(
            f"r{number}",
            prompt,
            self._random.randrange(1, 30),
            predicted_token_ids=predicted if self._random.random() < 0.7 else [],
            stop_token_ids=[3] if self._random.random() < 0.3 else [],
            min_tokens=self._random.randrange(4),
            sampling=SamplingParams(
                temperature=self._random.random(),
                logit_bias={3: -0.1},
                num_logprobs=self._random.choice([None, 0, 2]),
                num_prompt_logprobs=self._random.choice([None, 3]),
            ),
            wants_prediction_positions=self._random.random() < 0.5,
            priority=self._random.randrange(3),
            cache_salt=self._random.choice(["", "ä"]),
            max_draft_tokens=self._random.choice([None, 0, 2]),
            output_token_ids=predicted[: self._random.choice([0, 0, 0, 4])],
            is_followed=number % 5 > 0,
            owner=self._random.randrange(1, 3),
            handle=number,
        )
        self._news[new.request_id] = new
        try:
            self.scheduler.add(new, self._now)
        except RejectionError:
            return

    def set_window(self) -> None:
        request_id = self._draw()
        if self._num_output and self._random.random() < 0.7:
            request_id = self._random.choice(list(self._num_output))
        predicted = self._news[request_id].predicted_token_ids if request_id in self._news else []
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
        self.scheduler.set_window(request_id, window)

    def abort(self) -> None:
        self.scheduler.abort(self._draw())

    def set_priority(self) -> None:
        self.scheduler.set_priority(self._draw(), self._random.randrange(4))

    def pause(self) -> None:
        if self._random.random() < 0.2:
            self.scheduler.pause(self._random.choice(list(PauseMode)))

    def lose_worker(self) -> None:
        self._plans.clear()
        self._settled.clear()
        self._worker.restart()
        self.scheduler.restart(self._config, [(1, 800)], self._drafter_us(80))

    def _drafter_us(self, start: int) -> list[int]:
        drafter = self._config.drafter
        return [] if drafter is None else [start + 10 * n for n in range(drafter.max_depth)]

    def settle_again(self) -> None:
        if self._settled:
            self.scheduler.settle(self._random.choice(self._settled))

    def settle_nonsense(self) -> None:
        if self._settled:
            last = self._settled[-1]
            values = {name: getattr(last, name) for name in StepResult.__slots__}
            try:
                self.scheduler.settle(StepResult(**(values | {"sequence": 10_000})))
            except ResultError:
                return
            raise AssertionError("a result of the future was settled")

    def step(self) -> None:
        while self.scheduler.can_send:
            plan = self.scheduler.schedule(self._now)
            if plan is None:
                break
            self.num_plans += 1
            self._plans.append(plan_message(plan))
        if self._random.random() < 0.8:
            self.scheduler.prepare()
        if self._plans:
            self._settle(self._worker.execute(self._plans.pop(0)))
            while self._worker.can_repeat and self._random.random() < 0.5:
                self._settle(self._worker.repeat())

    def _settle(self, response: Any) -> None:
        response.step_ns = STEP_NS + self._random.randrange(STEP_NS)
        result = step_result(response)
        self._settled.append(result)
        outputs = self.scheduler.settle(result)
        for handle, count in zip(
            outputs.handles.tolist(), outputs.num_tokens.tolist(), strict=True
        ):
            request_id = f"r{handle}"
            self._num_output[request_id] = self._num_output.get(request_id, 0) + count
        for ended in outputs.ended:
            self._num_output.pop(ended.request_id, None)

    def _draw(self) -> str:
        """Returns a request, which may be over or never have been."""
        return f"r{self._random.randint(max(1, len(self._news) - 8), len(self._news) + 1)}"
