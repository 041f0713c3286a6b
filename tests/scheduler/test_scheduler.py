"""The scheduler against a worker that checks every plan: random commands, at every size."""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from optimist_scheduler.core.limits import Limits
from optimist_scheduler.core.output import FinishReason, Output, RejectionError
from optimist_scheduler.core.plan import Plan
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.validate import NewRequest
from optimist_scheduler.core.window import Window
from optimist_scheduler.translate import plan_message, step_result
from tests.scheduler.fake_worker import FakeWorker, expected_output

LIMITS = Limits(
    vocab_size=50,
    max_model_len=64,
    block_size=4,
    num_blocks=32,
    max_num_seqs=4,
    max_num_batched_tokens=16,
    max_num_waiting=8,
    num_speculative_tokens=4,
)


def fake_worker(limits: Limits = LIMITS) -> FakeWorker:
    return FakeWorker(
        limits.vocab_size,
        limits.max_model_len,
        limits.block_size,
        limits.num_blocks,
        limits.max_num_seqs,
        limits.max_num_batched_tokens,
    )


def step(scheduler: Scheduler, worker: FakeWorker) -> list[Output]:
    plan = scheduler.schedule()
    assert plan is not None
    return scheduler.settle(step_result(worker.execute(plan_message(plan))))


def run(scheduler: Scheduler, worker: FakeWorker) -> dict[str, list[Output]]:
    outputs: dict[str, list[Output]] = {}
    while scheduler.num_running or scheduler.num_waiting:
        for output in step(scheduler, worker):
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def text(outputs: list[Output]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.integers(1, 5),
        num_blocks=st.integers(4, 30),
        max_num_seqs=st.integers(1, 4),
        budget=st.integers(1, 20),
        k=st.integers(0, 6),
    )
    def begin(
        self, block_size: int, num_blocks: int, max_num_seqs: int, budget: int, k: int
    ) -> None:
        self.limits = Limits(7, 40, block_size, num_blocks, max_num_seqs, budget, 5, k)
        self.scheduler, self.worker = Scheduler(self.limits), fake_worker(self.limits)
        self.plan: Plan | None = None
        self.news: dict[str, NewRequest] = {}
        self.live: dict[str, list[int]] = {}
        self.waits: list[str] = []
        self.epochs = 0
        self.count = 0

    @rule(
        prompt=st.lists(st.integers(0, 6), min_size=1, max_size=20),
        max_tokens=st.integers(1, 30),
        stops=st.lists(st.integers(0, 6), max_size=1),
        min_tokens=st.integers(0, 5),
        predicted=st.booleans(),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        stops: list[int],
        min_tokens: int,
        predicted: bool,
    ) -> None:
        self.count += 1
        request_id = f"r{self.count}"
        new = NewRequest(request_id, prompt, max_tokens, [], stops, min_tokens)
        if predicted:
            new = replace(new, predicted_token_ids=self.truth(new))
        try:
            self.scheduler.add(new)
        except RejectionError as error:
            if error.finished.reason is FinishReason.OVERLOADED:
                assert self.scheduler.num_waiting >= self.limits.max_num_waiting
            else:
                assert len(prompt) >= self.limits.max_length
            return
        self.news[request_id], self.live[request_id] = new, []
        self.waits.append(request_id)

    def truth(self, new: NewRequest) -> list[int]:
        """Returns what the request's model says, not cut at stop tokens."""
        return expected_output(new.prompt_token_ids, 7, len(new.prompt_token_ids) + 35, set())

    @precondition(lambda self: self.live)
    @rule(data=st.data(), length=st.integers(0, 12), wrong_at=st.integers(0, 20))
    def set_window(self, data: Any, length: int, wrong_at: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        new, output = self.news[request_id], self.live[request_id]
        base = data.draw(st.integers(0, len(output)))
        tokens = self.truth(new)[base : base + length]
        if wrong_at < len(tokens):
            tokens[wrong_at] = (tokens[wrong_at] + 1) % 7
        self.epochs += 1
        taken = self.scheduler.set_window(request_id, Window(self.epochs, base, base, tokens))
        assert taken == (base + len(tokens) <= len(new.predicted_token_ids) or not tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        self.scheduler.abort(request_id)
        del self.live[request_id]
        if request_id in self.waits:
            self.waits.remove(request_id)

    @precondition(lambda self: self.plan is None)
    @rule()
    def send(self) -> None:
        decision = self.scheduler.compute_schedule()
        again = self.scheduler.compute_schedule()
        assert decision.slots.tolist() == again.slots.tolist()
        assert decision.num_draft_tokens.tolist() == again.num_draft_tokens.tolist()
        self.plan = self.scheduler.apply_schedule(decision)
        if self.plan is None:
            assert not self.live
            return
        for request in self.plan.admissions:
            if request.request_id in self.waits:
                # First come, first served; a preempted request is admitted before them.
                assert self.waits.pop(0) == request.request_id

    @precondition(lambda self: self.plan is not None)
    @rule()
    def receive(self) -> None:
        assert self.plan is not None
        plan, self.plan = self.plan, None
        message = self.worker.execute(plan_message(plan))
        for output in self.scheduler.settle(step_result(message)):
            self.live[output.request_id] += output.token_ids
            assert output.num_accepted_tokens <= len(output.token_ids)
            if output.finished is not None:
                self.check_end(output)

    def check_end(self, output: Output) -> None:
        new, tokens = self.news[output.request_id], self.live.pop(output.request_id)
        finished = output.finished
        assert finished is not None
        limit = min(len(new.prompt_token_ids) + new.max_tokens, self.limits.max_length)
        stops = set(new.stop_token_ids)
        assert tokens == expected_output(new.prompt_token_ids, 7, limit, stops, new.min_tokens)
        is_stop = tokens[-1] in stops and len(tokens) >= new.min_tokens
        assert finished.reason is (FinishReason.STOP if is_stop else FinishReason.LENGTH)
        assert 0 <= finished.rejected_prediction_tokens <= len(new.predicted_token_ids)
        assert 0 <= finished.accepted_prediction_tokens <= len(tokens)
        assert 1 <= finished.num_passes <= len(tokens)
        assert finished.num_passes + finished.accepted_prediction_tokens >= len(tokens)

    @rule(lost=st.booleans())
    def restart_worker(self, lost: bool) -> None:
        """The stream broke, before or after the worker ran the plan."""
        if self.plan is not None and not lost:
            self.worker.execute(plan_message(self.plan))
        self.plan = None
        self.worker.restart()
        assert self.scheduler.restart(self.limits) == []
        # All wait again, in the order in which they came.
        self.waits = [request_id for request_id in self.waits if request_id in self.live]

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(20_000):
            if not self.live and self.plan is None:
                break
            self.send() if self.plan is None else self.receive()
            self.scheduler.check_integrity()
        assert not self.live
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        assert self.scheduler.num_free_blocks == self.limits.num_blocks


SchedulerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestRandomCommands = SchedulerMachine.TestCase
