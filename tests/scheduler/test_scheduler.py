"""The scheduler against a worker that checks every plan: random commands, at every size."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from optimist_scheduler.core.limits import Limits
from optimist_scheduler.core.output import FinishReason, Output, RejectionError
from optimist_scheduler.core.plan import Plan
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.settle import find_end
from optimist_scheduler.core.validate import NewRequest, build_request
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
        eager=st.booleans(),
    )
    def begin(
        self,
        block_size: int,
        num_blocks: int,
        max_num_seqs: int,
        budget: int,
        k: int,
        eager: bool,
    ) -> None:
        self.eager = eager
        self.limits = Limits(7, 40, block_size, num_blocks, max_num_seqs, budget, 5, k)
        self.scheduler, self.worker = Scheduler(self.limits), fake_worker(self.limits)
        self.plan: Plan | None = None
        self.news: dict[str, NewRequest] = {}
        self.live: dict[str, list[int]] = {}
        self.waits: list[str] = []
        self.epochs = 0
        self.count = 0
        self.decoding: set[str] = set()

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
        if self.eager:
            self.propose(request_id)

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

    def propose(self, request_id: str) -> None:
        """Sets a right window, as a proposer that keeps up would."""
        base = len(self.live[request_id])
        tokens = self.news[request_id].predicted_token_ids[base : base + 8]
        self.epochs += 1
        assert self.scheduler.set_window(request_id, Window(self.epochs, base, base, tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), chance=st.integers(0, 3))
    def abort(self, data: Any, chance: int) -> None:
        if chance:
            return
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        self.scheduler.abort(request_id)
        del self.live[request_id]
        if request_id in self.waits:
            self.waits.remove(request_id)

    @precondition(lambda self: self.plan is None)
    @rule()
    def send(self) -> None:
        for request_id in self.scheduler.find_unaligned() if self.eager else ():
            self.propose(request_id)
        decision = self.scheduler.compute_schedule()
        again = self.scheduler.compute_schedule()
        assert decision.slots.tolist() == again.slots.tolist()
        assert decision.num_draft_tokens.tolist() == again.num_draft_tokens.tolist()
        for slot in decision.preempted.tolist():
            assert slot != self.scheduler._state.running[0], "never the oldest"
            self.decoding.discard(self.scheduler._state.table.request(slot).request_id)
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
            self.decoding.add(output.request_id)
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

    @rule(lost=st.booleans(), chance=st.integers(0, 5))
    def restart_worker(self, lost: bool, chance: int) -> None:
        """The stream broke, before or after the worker ran the plan."""
        if chance:
            return
        if self.plan is not None and not lost:
            self.worker.execute(plan_message(self.plan))
        self.plan = None
        self.worker.restart()
        for output in self.scheduler.restart(self.limits):
            assert output.finished is not None
            assert output.finished.message.startswith("the worker was lost 5 times")
            del self.live[output.request_id]
        self.decoding.clear()
        # All wait again, in the order in which they came.
        self.waits = [request_id for request_id in self.waits if request_id in self.live]

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.check_state()

    def check_state(self) -> None:
        self.scheduler.check_integrity()
        table = self.scheduler._state.table
        for slot in self.scheduler._state.running:
            num_tokens, placeholders = table.num_tokens[slot], table.num_output_placeholders[slot]
            if table.request(slot).request_id in self.decoding:
                assert table.num_computed_tokens[slot] - placeholders == num_tokens - 1
            elif self.plan is None:
                assert placeholders == 0

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(20_000):
            if not self.live and self.plan is None:
                break
            self.send() if self.plan is None else self.receive()
            self.check_state()
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


def test_requests_run_together_and_end_at_their_limit() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    for handle in range(6):
        scheduler.add(NewRequest(f"r{handle}", [handle, 1], 5 + handle))
    outputs = run(scheduler, worker)
    assert worker.admitted == [f"r{handle}" for handle in range(6)]
    for handle in range(6):
        assert text(outputs[f"r{handle}"]) == expected_output([handle, 1], 50, 7 + handle, set())


def test_a_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    scheduler.add(NewRequest("short", [1], 20))
    step(scheduler, worker)
    scheduler.add(NewRequest("long", list(range(40)), 3))
    for num_long in (15, 15):
        plan = scheduler.schedule()
        assert plan is not None
        assert plan.num_known_tokens.tolist() == [1, num_long]
        outputs = scheduler.settle(step_result(worker.execute(plan_message(plan))))
        assert [output.request_id for output in outputs] == ["short"]
    assert [output.request_id for output in step(scheduler, worker)] == ["short", "long"]


def test_the_last_prefill_chunk_carries_drafts() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    expected = expected_output([1, 2], 50, 12, set())
    scheduler.add(NewRequest("r", [1, 2], 10, expected))
    assert scheduler.set_window("r", Window(0, 0, 0, expected))
    (output,) = step(scheduler, worker)
    assert output.token_ids == expected[:5]
    assert output.num_accepted_tokens == 4


def test_drafts_stop_where_the_window_or_the_request_ends() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    expected = expected_output([1, 2], 50, 12, set())
    scheduler.add(NewRequest("r", [1, 2], 7, expected))
    scheduler.set_window("r", Window(0, 0, 0, expected[:3]))
    assert step(scheduler, worker)[0].num_accepted_tokens == 3
    assert scheduler.find_unaligned() == ["r"]
    scheduler.set_window("r", Window(1, 4, 4, expected[4:]))
    assert scheduler.find_unaligned() == []
    (output,) = step(scheduler, worker)
    assert output.num_accepted_tokens == 2
    assert output.finished is not None
    assert output.finished.accepted_prediction_tokens == 5
    assert output.finished.rejected_prediction_tokens == 0
    assert output.finished.num_passes == 2


def test_what_is_accepted_behind_a_stop_token_is_cut() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    expected = expected_output([1, 2], 50, 12, set())
    stop = expected[2]
    assert stop not in expected[:2]
    scheduler.add(NewRequest("r", [1, 2], 10, expected, [stop]))
    scheduler.set_window("r", Window(0, 0, 0, expected))
    (output,) = step(scheduler, worker)
    assert output.token_ids == expected[:3]
    assert output.num_accepted_tokens == 3
    assert output.finished is not None
    assert output.finished.reason is FinishReason.STOP
    assert output.finished.accepted_prediction_tokens == 3
    # The fourth draft was accepted by the worker, and never delivered.
    assert output.finished.rejected_prediction_tokens == 1


def test_a_position_that_is_rejected_twice_counts_once() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    expected = expected_output([1, 2], 50, 12, set())
    wrong = [(token + 1) % 50 for token in expected]
    scheduler.add(NewRequest("r", [1, 2], 4, wrong[:2]))
    scheduler.set_window("r", Window(0, 0, 0, wrong[:2]))
    step(scheduler, worker)
    scheduler.set_window("r", Window(1, 1, 0, wrong[:2]))
    step(scheduler, worker)
    finished = run(scheduler, worker)["r"][-1].finished
    assert finished is not None
    assert finished.rejected_prediction_tokens == 2
    assert finished.accepted_prediction_tokens == 0
    assert finished.num_passes == 4


def test_short_of_blocks_the_youngest_is_computed_again() -> None:
    limits = replace(LIMITS, num_blocks=9, max_num_seqs=2)
    scheduler, worker = Scheduler(limits), fake_worker(limits)
    for name in ("old", "young"):
        scheduler.add(NewRequest(name, [1, 2, 3, 4, 5], 25))
    outputs = run(scheduler, worker)
    assert worker.admitted == ["old", "young", "young"]
    for name in ("old", "young"):
        assert text(outputs[name]) == expected_output([1, 2, 3, 4, 5], 50, 30, set())


def test_drafts_never_preempt() -> None:
    limits = replace(LIMITS, num_blocks=4, max_num_seqs=2)
    scheduler, worker = Scheduler(limits), fake_worker(limits)
    expected = expected_output([1], 50, 9, set())
    scheduler.add(NewRequest("a", [1], 8, expected))
    scheduler.add(NewRequest("b", [2], 4))
    step(scheduler, worker)
    scheduler.set_window("a", Window(0, 1, 1, expected[1:]))
    while scheduler.num_running == 2:
        assert scheduler.compute_schedule().preempted.tolist() == []
        step(scheduler, worker)
    run(scheduler, worker)
    assert worker.admitted == ["a", "b"]


def test_an_abort_in_flight_keeps_the_slot_until_the_plan_has_settled() -> None:
    limits = replace(LIMITS, max_num_seqs=1)
    scheduler, worker = Scheduler(limits), fake_worker(limits)
    scheduler.add(NewRequest("a", [1], 9))
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.abort("a")
    scheduler.add(NewRequest("a", [2], 2))
    assert scheduler.compute_schedule().admitted == []
    assert scheduler.num_free_blocks < limits.num_blocks
    assert scheduler.settle(step_result(worker.execute(plan_message(plan)))) == []
    assert scheduler.num_free_blocks == limits.num_blocks
    plan = scheduler.schedule()
    assert plan is not None
    assert (plan.released_slots, plan.slots.tolist()) == ([0], [0])


def test_a_second_plan_waits_for_the_first() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(NewRequest("a", [1], 9))
    scheduler.schedule()
    with pytest.raises(RuntimeError, match="in flight"):
        scheduler.schedule()


def test_a_window_is_sent_once_and_again_after_readmission() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    expected = expected_output([1, 2], 50, 30, set())
    scheduler.add(NewRequest("r", [1, 2], 20, expected))
    scheduler.set_window("r", Window(0, 0, 0, expected[:20]))
    for num_windows in (1, 0):
        plan = scheduler.schedule()
        assert plan is not None
        assert len(plan.windows) == num_windows
        scheduler.settle(step_result(worker.execute(plan_message(plan))))
    worker.restart()
    scheduler.restart(LIMITS)
    plan = scheduler.schedule()
    assert plan is not None
    assert [slot for slot, _ in plan.windows] == plan.slots.tolist()


@pytest.mark.parametrize(
    "window",
    [
        Window(4, 0, 0, [1]),
        Window(5, -1, 0, [1]),
        Window(5, 0, -1, [1]),
        Window(5, 0, 2, [1, 1]),
        Window(5, 0, 0, [50]),
        Window(5, 0, 0, [-1]),
    ],
)
def test_a_window_that_is_old_or_wrong_is_not_taken(window: Window) -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(NewRequest("r", [1, 2], 10, [1, 2, 3]))
    assert scheduler.set_window("r", Window(5, 0, 0, [1, 2, 3]))
    assert not scheduler.set_window("r", window)
    assert not scheduler.set_window("unknown", Window(9, 0, 0, []))


def test_the_waiting_queue_is_bounded_and_ids_are_unique() -> None:
    scheduler = Scheduler(replace(LIMITS, max_num_waiting=1))
    scheduler.add(NewRequest("a", [1], 1))
    with pytest.raises(RejectionError, match="1 requests wait") as caught:
        scheduler.add(NewRequest("b", [1], 1))
    assert caught.value.finished.reason is FinishReason.OVERLOADED
    with pytest.raises(RejectionError, match="request_id: is in use") as caught:
        scheduler.add(NewRequest("a", [1], 1))
    assert caught.value.finished.reason is FinishReason.REFUSED


def test_a_smaller_worker_ends_what_does_not_fit_and_keeps_the_rest() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    scheduler.add(NewRequest("long", list(range(20)), 30))
    scheduler.add(NewRequest("short", [1], 30))
    step(scheduler, worker)
    step(scheduler, worker)
    smaller = replace(LIMITS, num_blocks=4)
    (output,) = scheduler.restart(smaller)
    assert output.request_id == "long"
    assert output.finished is not None
    assert output.finished.reason is FinishReason.ERROR
    run(scheduler, fake_worker(smaller))
    assert scheduler.num_free_blocks == 4


def test_a_request_that_loses_the_worker_each_time_ends() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    scheduler.add(NewRequest("bad", [1], 9))
    for _ in range(4):
        scheduler.schedule()
        assert scheduler.restart(LIMITS) == []
    step(scheduler, worker)
    for _ in range(4):
        scheduler.schedule()
        assert scheduler.restart(LIMITS) == []
    scheduler.schedule()
    scheduler.add(NewRequest("good", [1], 9))
    (output,) = scheduler.restart(LIMITS)
    assert output.request_id == "bad"
    assert output.finished is not None
    assert output.finished.reason is FinishReason.ERROR
    assert scheduler.num_waiting == 1


def test_no_draft_is_planned_once_the_output_left_the_window() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    expected = expected_output([1, 2], 50, 30, set())
    wrong = [*expected[:2], (expected[2] + 1) % 50, *expected[3:20]]
    scheduler.add(NewRequest("r", [1, 2], 20, wrong))
    scheduler.set_window("r", Window(0, 0, 0, wrong))
    (output,) = step(scheduler, worker)
    assert output.token_ids == expected[:3]
    assert scheduler.find_unaligned() == ["r"]
    assert scheduler.compute_schedule().num_draft_tokens.tolist() == [0]


def test_a_preempted_request_goes_ahead_of_those_that_wait() -> None:
    limits = replace(LIMITS, num_blocks=9, max_num_seqs=2)
    scheduler, worker = Scheduler(limits), fake_worker(limits)
    for name in ("old", "young", "last"):
        scheduler.add(NewRequest(name, [1, 2, 3, 4, 5], 25))
    run(scheduler, worker)
    assert worker.admitted[:4] == ["old", "young", "young", "last"]


def test_after_a_restart_what_ran_goes_ahead_of_what_waited() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    names = [f"r{number}" for number in range(6)]
    for name in names:
        scheduler.add(NewRequest(name, [1], 9))
    step(scheduler, worker)
    worker.restart()
    scheduler.restart(LIMITS)
    run(scheduler, worker)
    assert worker.admitted == names[:4] + names


def test_several_preempted_requests_keep_their_order() -> None:
    limits = replace(LIMITS, num_blocks=6, max_num_seqs=3, block_size=1)
    scheduler, worker = Scheduler(limits), fake_worker(limits)
    for name in ("a", "b", "c"):
        scheduler.add(NewRequest(name, [1], 4))
    step(scheduler, worker)
    step(scheduler, worker)
    decision = scheduler.compute_schedule()
    assert decision.preempted.tolist() == [2]
    run(scheduler, worker)
    assert worker.admitted == ["a", "b", "c", "b", "c"]


def test_drafts_share_budget_and_blocks_with_every_row() -> None:
    limits = replace(LIMITS, max_num_batched_tokens=7, num_blocks=12, block_size=1)
    scheduler, worker = Scheduler(limits), fake_worker(limits)
    for name in ("a", "b"):
        expected = expected_output([1], 50, 9, set())
        scheduler.add(NewRequest(name, [1], 8, expected))
    step(scheduler, worker)
    for name in ("a", "b"):
        scheduler.set_window(name, Window(0, 1, 1, expected[1:]))
    assert scheduler.compute_schedule().num_draft_tokens.tolist() == [4, 1]
    step(scheduler, worker)
    # Six and three tokens are computed. Of three free blocks known tokens need two, and the
    # older row has one token left to draft.
    decision = scheduler.compute_schedule()
    assert decision.num_known_tokens.tolist() == [1, 1]
    assert decision.num_draft_tokens.tolist() == [1, 0]


def test_nobody_is_admitted_into_blocks_that_a_preemption_freed() -> None:
    limits = replace(LIMITS, num_blocks=9, max_num_seqs=3)
    scheduler, worker = Scheduler(limits), fake_worker(limits)
    for name, num_prompt_tokens in (("old", 1), ("young", 13), ("last", 9)):
        scheduler.add(NewRequest(name, [1] * num_prompt_tokens, 20))
    run(scheduler, worker)
    assert worker.admitted == ["old", "young", "young", "last"]


def test_a_window_that_the_output_has_left_already_is_not_drafted_from() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    scheduler.add(NewRequest("r", [1, 2], 20, [0] * 20))
    (output,) = step(scheduler, worker)
    other = (output.token_ids[0] + 1) % 50
    scheduler.set_window("r", Window(0, 0, 0, [other, 0, 0, 0]))
    assert scheduler.find_unaligned() == ["r"]
    assert scheduler.compute_schedule().num_draft_tokens.tolist() == [0]


def test_tokens_behind_the_length_limit_are_cut_stop_tokens_too() -> None:
    request = build_request(NewRequest("r", [1], 3, [], [9]), LIMITS)
    assert find_end(request, [5, 6]) == (None, 2)
    assert find_end(request, [5, 6, 7]) == (FinishReason.LENGTH, 3)
    assert find_end(request, [5, 6, 7, 9]) == (FinishReason.LENGTH, 3)
    assert find_end(request, [5, 6, 9, 9]) == (FinishReason.STOP, 3)


def test_requests_that_are_preempted_together_keep_their_order() -> None:
    limits = replace(LIMITS, num_blocks=8, block_size=1)
    scheduler, worker = Scheduler(limits), fake_worker(limits)
    for name in ("a", "b", "c", "d"):
        scheduler.add(NewRequest(name, [1], 4))
    step(scheduler, worker)
    step(scheduler, worker)
    assert scheduler.compute_schedule().preempted.tolist() == [3, 2]
    run(scheduler, worker)
    assert worker.admitted == ["a", "b", "c", "d", "c", "d"]


def test_the_first_pass_drafts_no_further_than_the_request_may_go() -> None:
    scheduler, worker = Scheduler(LIMITS), fake_worker()
    expected = expected_output([1, 2], 50, 12, set())
    scheduler.add(NewRequest("r", [1, 2], 3, expected))
    scheduler.set_window("r", Window(0, 0, 0, expected))
    assert scheduler.compute_schedule().admitted[0].num_draft_tokens == 2
    (output,) = step(scheduler, worker)
    assert output.token_ids == expected[:3]
