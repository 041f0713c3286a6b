"""The scheduler against a worker that checks every plan: random commands, sizes and depths."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from optimist_common.drafts import DraftSource
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import write_sampling
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.following import wakes
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.requests.table import SlotStatus
from optimist_scheduler.core.scheduler import PauseMode, Scheduler
from optimist_scheduler.core.values import FinishReason, RejectionError, StepOutputs
from optimist_scheduler.core.width.drafter import Drafter
from optimist_scheduler.core.windows.window import Window, WindowError
from optimist_scheduler.workers.translate import plan_message, step_result
from tests.scheduler.drive import fake_worker, make_window, rows, window_of
from tests.scheduler.fake_worker import expected_output
from tests.scheduler.received import Received

VOCAB_SIZE = 7
DRAFTERS = [
    None,
    Drafter(DraftSource.DRAFT_MODEL, 3, 3),
    Drafter(DraftSource.NGRAM, 3, 3),
    Drafter(DraftSource.EAGLE, 1, 1),
    # Trees: more nodes than levels.
    Drafter(DraftSource.MEDUSA, 6, 2),
    Drafter(DraftSource.EAGLE, 5, 3),
]

FAULTS: dict[str, Callable[[int], Window]] = {
    "token": lambda base: window_of(base, [(VOCAB_SIZE, -1, -1)]),
    "position": lambda base: window_of(base, [(1, -1, 99)]),
    "parent": lambda base: window_of(base, [(1, -1, -1), (2, 1, -1)]),
    "twice": lambda base: window_of(base, [(1, -1, -1), (1, -1, -1)]),
    "rising": lambda base: window_of(base, [(1, -1, -1), (1, 0, -1)], [0.5, 0.6]),
    "no chance": lambda base: window_of(base, [(1, -1, -1)], [1.5]),
    "no number": lambda base: window_of(base, [(1, -1, -1), (1, 0, -1)], [1.0, float("nan")]),
    "values": lambda base: window_of(base, [(1, -1, -1), (1, 0, -1)], [0.5]),
    "size": lambda base: window_of(base, [(1, node - 1, -1) for node in range(257)]),
}
CONFIGS = st.fixed_dictionaries(
    {
        "block_size": st.integers(1, 5),
        "num_blocks": st.integers(4, 30),
        "max_num_seqs": st.integers(1, 4),
        "max_num_batched_tokens": st.integers(4, 20),
        "num_speculative_tokens": st.integers(0, 6),
        "enable_prefix_caching": st.booleans(),
        "enable_optimistic_scheduling": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "draft_width": st.sampled_from(["fixed", "goodput", "adaptive", "crossover"]),
        "prefill_share": st.sampled_from([0.0, 0.5, 1.0]),
        "drafter": st.sampled_from(DRAFTERS),
    }
)
DEPTHS = st.one_of(
    st.fixed_dictionaries(
        {"max_plans_in_flight": st.integers(1, 3), "multi_step_count": st.integers(1, 3)}
    ),
    st.fixed_dictionaries({"num_pipeline_stages": st.integers(2, 3)}),
)


Path = tuple[int, ...]
"""Tokens from the begin of an output."""
Drafted = dict[str, dict[Path, int]]
"""Position in the prediction of what was drafted of windows, by request."""


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(values=CONFIGS, depth=DEPTHS, is_eager=st.booleans())
    def begin(self, values: dict[str, Any], depth: dict[str, int], is_eager: bool) -> None:
        self.is_eager = is_eager
        self.config = EngineConfig(
            vocab_size=VOCAB_SIZE,
            max_model_len=40,
            max_num_waiting=5,
            starvation_seconds=3,
            **values,
            **depth,
        )
        self.scheduler, self.worker = Scheduler(self.config), fake_worker(self.config)
        self.now = 0.0
        self.sent: list[Plan] = []
        self.results: list[tuple[StepResult, Drafted]] = []
        self.settled: list[StepResult] = []
        self.news: dict[str, NewRequest] = {}
        self.live: dict[str, list[int]] = {}
        self.sources: dict[str, Counter[int]] = {}
        self.bases: dict[str, int] = {}
        """Base of the last window that was taken."""
        self.windows: dict[str, dict[Path, int]] = {}
        """Position in the prediction of each node of that window, by all output up to it."""
        self.in_force: dict[int, dict[str, dict[Path, int]]] = {}
        """The same when each plan was made."""
        self.marks: dict[str, dict[int, bool]] = {}
        """Whether each position that was drafted was kept."""
        self.gains: dict[str, int] = {}
        """What following brings; -1 for what is not followed."""
        self.observed: dict[str, list[int]] = {}
        """What proposers were sent of outputs."""
        self.reported: dict[str, Received] = {}
        """What was reported of how likely tokens are."""

    # Commands.

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        max_tokens=st.integers(1, 30),
        stops=st.lists(st.integers(0, 6), max_size=1),
        min_tokens=st.integers(0, 5),
        is_predicted=st.booleans(),
        is_followed=st.booleans(),
        priority=st.integers(0, 2),
        max_draft_tokens=st.sampled_from([None, 0, 2]),
        num_logprobs=st.sampled_from([None, None, 0, 2]),
        num_prompt_logprobs=st.sampled_from([None, None, 0, 3]),
        wants_prediction_positions=st.booleans(),
    )
    def add(
        self,
        is_predicted: bool,
        num_logprobs: int | None,
        num_prompt_logprobs: int | None,
        **values: Any,
    ) -> None:
        handle = len(self.news) + 1
        prompt, stops = values.pop("prompt"), values.pop("stops")
        values["priority"] *= self.config.policy == "priority"
        sampling = SamplingParams(
            num_logprobs=num_logprobs, num_prompt_logprobs=num_prompt_logprobs
        )
        new = NewRequest(
            f"r{handle}",
            prompt,
            values.pop("max_tokens"),
            stop_token_ids=stops,
            sampling=sampling,
            sampling_message=write_sampling(sampling),
            owner=3,
            handle=handle,
            **values,
        )
        if is_predicted:
            new = replace(new, predicted_token_ids=self.truth(new))
        try:
            self.scheduler.add(new, self.now)
        except RejectionError as error:
            if error.finished.reason is FinishReason.OVERLOADED:
                assert self.scheduler.num_waiting >= self.config.max_num_waiting
            else:
                assert len(prompt) >= self.config.max_length
            return
        self.news[new.request_id], self.live[new.request_id] = new, []
        self.sources[new.request_id] = Counter()
        self.bases[new.request_id], self.windows[new.request_id] = -1, {}
        self.marks[new.request_id] = {}
        self.gains[new.request_id] = (4096 if is_predicted else 0) if new.is_followed else -1
        self.observed[new.request_id] = []
        self.reported[new.request_id] = Received(new)
        if self.is_eager:
            self.propose(new.request_id)

    def truth(self, new: NewRequest) -> list[int]:
        """Returns what the request's model says, not cut at stop tokens."""
        length = len(new.prompt_token_ids) + 35
        return expected_output(new.prompt_token_ids, VOCAB_SIZE, length, set())

    def draw_live(self, data: Any) -> str:
        request_id: str = data.draw(st.sampled_from(sorted(self.live)))
        return request_id

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        num_nodes=st.integers(0, 14),
        is_chain=st.booleans(),
        has_values=st.booleans(),
        seed=st.integers(0, 2**16),
    )
    def set_window(
        self, data: Any, num_nodes: int, is_chain: bool, has_values: bool, seed: int
    ) -> None:
        """A tree, along what the model says or not, with any positions and values."""
        resting = sorted(filter(self.rests, self.live))
        request_id = data.draw(st.sampled_from(resting or sorted(self.live)))
        new, output = self.news[request_id], self.live[request_id]
        base = data.draw(st.integers(0, len(output) + 1))
        random, truth = Random(seed), self.truth(new)
        most = len(new.predicted_token_ids)
        nodes: list[tuple[int, int, int]] = []
        paths: list[Path] = []
        for _ in range(num_nodes):
            last = len(paths) - 1
            parent = last if is_chain else random.randrange(max(-1, last - 2), last + 1)
            before = paths[parent] if parent >= 0 else ()
            place = base + len(before)
            is_right = random.random() < 0.7 and place < len(truth)
            token = truth[place] if is_right else random.randrange(VOCAB_SIZE)
            if (*before, token) in paths:
                continue
            paths.append((*before, token))
            nodes.append((token, parent, random.randrange(-1, most)))
        # Mostly so small that they promise less than a token.
        values = sorted((random.random() ** 4 for _ in nodes), reverse=True) if has_values else []
        window = window_of(base, nodes, values)
        since = tuple(output[base:])
        is_late = base > len(output) or (len(since) > 0 and since not in paths)
        is_taken = base >= self.bases[request_id] and not is_late
        if is_taken and self.rests(request_id):
            left = window.pass_tokens(np.array(since, np.int32))
            assert left is not None
            slot = self.scheduler._requests[request_id].slot
            scale = self.scheduler._state.widths.scales[slot] if slot >= 0 else 1
            is_taken = wakes(left, scale)
            self.gains[request_id] = 256 if is_taken else self.gains[request_id]
        assert self.scheduler.set_window(request_id, window) == is_taken
        if is_taken:
            start = tuple(output[:base])
            self.bases[request_id] = base
            positions = [position for _, _, position in nodes]
            self.windows[request_id] = {
                start + path: position for path, position in zip(paths, positions, strict=True)
            }

    @precondition(lambda self: self.live)
    @rule(data=st.data(), fault=st.sampled_from(sorted(FAULTS)))
    def set_bad_window(self, data: Any, fault: str) -> None:
        request_id = self.draw_live(data)
        base = max(self.bases[request_id], 0)
        with pytest.raises(WindowError):
            self.scheduler.set_window(request_id, FAULTS[fault](base))

    def rests(self, request_id: str) -> bool:
        return 0 <= self.gains[request_id] < 64

    @precondition(lambda self: self.live)
    @rule(data=st.data(), rests=st.booleans())
    def gain_little(self, data: Any, rests: bool) -> None:
        """The request rests, or does with the next pass that brings no draft."""
        request_id = self.draw_live(data)
        if self.gains[request_id] < 64:
            return
        state, request = self.scheduler._state, self.scheduler._requests[request_id]
        rests = rests and request.slot in state.running.tolist()
        self.gains[request_id] = request.gain = 63 if rests else 64
        if request.slot >= 0:
            state.table.gain[request.slot] = request.gain
        if rests:
            state.rest(request.slot)
            self.windows[request_id] = {}

    def propose(self, request_id: str) -> None:
        """Sets a right window, as a proposer that keeps up would."""
        output, new = self.live[request_id], self.news[request_id]
        base = len(output)
        tokens = self.truth(new)[base : base + 12]
        values = [0.9**place for place in range(len(tokens))]
        position = base if new.predicted_token_ids else -1
        window = make_window(base, position, tokens, (), values)
        taken = self.scheduler.set_window(request_id, window)
        assert taken == (not self.rests(request_id) or len(tokens) > 0)
        if not taken:
            return
        if self.rests(request_id):
            self.gains[request_id] = 256
        self.bases[request_id] = base
        self.windows[request_id] = {
            (*output, *tokens[: place + 1]): position + place if position >= 0 else -1
            for place in range(len(tokens))
        }

    @precondition(lambda self: self.live)
    @rule(data=st.data(), chance=st.integers(0, 3))
    def abort(self, data: Any, chance: int) -> None:
        if chance:
            return
        request_id = self.draw_live(data)
        finished = self.scheduler.abort(request_id)
        assert finished is not None
        assert finished.reason is FinishReason.ABORTED
        assert self.scheduler.abort(request_id) is None
        del self.live[request_id]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), priority=st.integers(0, 3))
    def set_priority(self, data: Any, priority: int) -> None:
        assert self.scheduler.set_priority(self.draw_live(data), priority)

    @rule(mode=st.sampled_from(PauseMode), chance=st.integers(0, 5))
    def pause(self, mode: PauseMode, chance: int) -> None:
        if chance:
            return
        ended = [each.request_id for each in self.scheduler.pause(mode)]
        assert ended == (list(self.live) if mode is PauseMode.ABORT else [])
        for request_id in ended:
            del self.live[request_id]

    @rule()
    def resume(self) -> None:
        self.scheduler.resume()

    @rule(seconds=st.integers(1, 3))
    def let_time_pass(self, seconds: int) -> None:
        self.now += seconds

    @precondition(lambda self: self.live)
    @rule(data=st.data(), chance=st.integers(0, 5))
    def fail(self, data: Any, chance: int) -> None:
        """From now on the worker cannot run a request."""
        if not chance:
            self.worker.failing.add(self.draw_live(data))

    # The scheduler.

    @rule()
    def prepare(self) -> None:
        self.scheduler.prepare()

    @precondition(lambda self: self.scheduler.can_send)
    @rule()
    def send(self) -> None:
        if self.is_eager:
            for request_id in self.scheduler.find_unaligned():
                least = 64 if self.news[request_id].predicted_token_ids else 1024
                assert self.gains[request_id] >= least
                self.propose(request_id)
            for request_id in filter(self.rests, list(self.live)):
                self.propose(request_id)
        running = self.scheduler._state.running.tolist()
        decision, again = self.scheduler.compute_schedule(), self.scheduler.compute_schedule()
        assert decision.rows.slots.tolist() == again.rows.slots.tolist()
        assert decision.rows.num_draft_tokens.tolist() == again.rows.num_draft_tokens.tolist()
        if running:
            assert running[0] not in decision.preempted or self.config.policy == "priority"
        plan = self.scheduler.schedule(self.now)
        if self.config.policy == "fcfs":
            waiting = self.scheduler._state.waiting.requests
            assert not any(request.is_overtaken for request in waiting)
        if plan is None:
            must_run = self.live and not self.scheduler.is_paused
            assert not must_run or self.scheduler.num_plans_in_flight
            return
        assert len(self.sent) + len(self.results) <= self.config.plan_depth * 4
        self.sent.append(plan)
        self.in_force[plan.sequence] = dict(self.windows)

    # The worker.

    @precondition(lambda self: self.sent)
    @rule()
    def execute(self) -> None:
        self.run_worker(lambda: self.worker.execute(plan_message(self.sent.pop(0))))

    @precondition(lambda self: not self.sent and self.worker.can_repeat)
    @rule()
    def repeat(self) -> None:
        self.run_worker(self.worker.repeat)

    def run_worker(self, run: Callable[[], Any]) -> None:
        """Lets the worker run a plan; notes what it drafted of windows, which it must have."""
        self.worker.drafted.clear()
        result = step_result(run())
        drafted: Drafted = {}
        for request_id, output, paths in self.worker.drafted:
            windows = self.in_force[result.sequence][request_id] if paths else {}
            drafted[request_id] = {output + path: windows[output + path] for path in paths}
        self.results.append((result, drafted))

    @precondition(lambda self: self.results)
    @rule()
    def receive(self) -> None:
        result, drafted = self.results.pop(0)
        self.settled.append(result)
        self.take(self.scheduler.settle(result), drafted)

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def receive_again(self, data: Any) -> None:
        result = data.draw(st.sampled_from(self.settled))
        num_late = self.scheduler.stats.num_late_results
        outputs = self.scheduler.settle(result)
        assert len(outputs.handles) == len(outputs.ended) == 0
        assert self.scheduler.stats.num_late_results == num_late + 1

    @rule(is_run=st.booleans(), chance=st.integers(0, 5))
    def lose_worker(self, is_run: bool, chance: int) -> None:
        """The stream broke, before or after the worker ran a plan."""
        if chance:
            return
        if self.sent and is_run:
            self.worker.execute(plan_message(self.sent[0]))
        self.sent, self.results, self.settled = [], [], []
        self.worker.restart()
        for ended in self.scheduler.restart(self.config):
            assert ended.finished.message.startswith("the worker was lost 5 times")
            del self.live[ended.request_id]

    # What must hold.

    def take(self, outputs: StepOutputs, drafted: Drafted) -> None:
        assert set(outputs.owners.tolist()) <= {3}
        for reported in outputs.logprobs:
            assert reported.owner == 3
            self.reported[f"r{reported.handle}"].add(reported.logprobs)
        positions = {reported.handle: reported.positions.tolist() for reported in outputs.positions}
        columns = outputs.handles, outputs.draft_sources, outputs.num_accepted_tokens
        for handle, source, accepted in zip(*(each.tolist() for each in columns), strict=True):
            request_id = f"r{handle}"
            tokens = rows(outputs)[handle]
            assert accepted <= len(tokens)
            self.sources[request_id][DraftSource.TARGET] += len(tokens) - accepted
            expected = [-1] * accepted
            if source == DraftSource.PREDICTION:
                places = self.account(request_id, tokens[:accepted], drafted[request_id])
                expected = places
            else:
                self.sources[request_id][source] += accepted
            self.live[request_id] += tokens
            truth = self.truth(self.news[request_id])
            assert self.live[request_id] == truth[: len(self.live[request_id])]
            self.check_positions(request_id, positions.pop(handle, None), expected)
            self.learn_gain(request_id, source, accepted)
        assert not positions
        self.check_observed(outputs)
        for handle in outputs.handles.tolist():
            self.reported[f"r{handle}"].check(self.live[f"r{handle}"])
        for ended in outputs.ended:
            self.check_end(ended.request_id, ended.finished)

    def learn_gain(self, request_id: str, source: int, accepted: int) -> None:
        """Averages what a pass has brought; a request that gains too little has no window."""
        gain, drafter = self.gains[request_id], self.config.drafter
        if gain >= 0 and drafter is not None and drafter.is_lookup and self.bases[request_id] < 0:
            assert source != drafter.source
        if gain < 64:
            return
        brought = accepted if source == DraftSource.PREDICTION else 0
        self.gains[request_id] = gain + (brought * 1024 - gain) // 16
        if self.rests(request_id):
            self.windows[request_id] = {}

    def check_observed(self, outputs: StepOutputs) -> None:
        """Proposers are sent all of what is awake, in order, and what rests in groups."""
        for request_id, tokens in outputs.observed:
            assert self.gains[request_id] >= 0
            self.observed[request_id] += tokens
        ended = {each.request_id for each in outputs.ended}
        for handle in outputs.handles.tolist():
            output, observed = self.live[f"r{handle}"], self.observed[f"r{handle}"]
            assert observed == output[: len(observed)]
            if f"r{handle}" in ended:
                continue
            if self.gains[f"r{handle}"] >= 64:
                assert observed == output
            elif self.rests(f"r{handle}"):
                most = 16 if self.news[f"r{handle}"].predicted_token_ids else 128
                assert len(output) - len(observed) < max(8, min(len(output) // 8, most))

    def check_positions(
        self, request_id: str, positions: list[int] | None, expected: list[int]
    ) -> None:
        """Compares the places of accepted drafts with those that their windows said."""
        if not self.news[request_id].wants_prediction_positions or not expected:
            assert positions is None
        else:
            assert positions == expected

    def account(self, request_id: str, kept: list[int], drafted: dict[Path, int]) -> list[int]:
        """Notes the drafts of a window, of which so many tokens were kept; returns their places."""
        output = tuple(self.live[request_id])
        paths = [(*output, *kept[: length + 1]) for length in range(len(kept))]
        for path, position in drafted.items():
            marks = self.marks[request_id]
            if position >= 0:
                marks[position] = marks.get(position, False) or path in paths
        for path in paths:
            is_predicted = drafted[path] >= 0
            self.sources[request_id][
                DraftSource.PREDICTION if is_predicted else DraftSource.NGRAM
            ] += 1
        return [drafted[path] for path in paths]

    def check_end(self, request_id: str, finished: Any) -> None:
        new, tokens = self.news[request_id], self.live.pop(request_id)
        sources = self.sources[request_id]
        assert list(finished.num_tokens_by_source) == [sources[source] for source in DraftSource]
        assert finished.accepted_prediction_tokens == sources[DraftSource.PREDICTION]
        marks = self.marks[request_id]
        assert finished.rejected_prediction_tokens == list(marks.values()).count(False)
        if finished.reason is FinishReason.ERROR:
            assert request_id in self.worker.failing
            return
        limit = min(len(new.prompt_token_ids) + new.max_tokens, self.config.max_length)
        stops = set(new.stop_token_ids)
        expected = expected_output(new.prompt_token_ids, VOCAB_SIZE, limit, stops, new.min_tokens)
        assert tokens == expected
        is_stop = tokens[-1] in stops and len(tokens) >= new.min_tokens
        assert finished.reason is (FinishReason.STOP if is_stop else FinishReason.LENGTH)
        assert 0 <= finished.rejected_prediction_tokens <= len(new.predicted_token_ids)
        assert 0 <= finished.accepted_prediction_tokens <= len(tokens)
        assert 1 <= finished.num_passes <= len(tokens)
        assert finished.num_passes >= sources[DraftSource.TARGET]
        assert finished.num_drafted_tokens >= len(tokens) - sources[DraftSource.TARGET]
        self.reported[request_id].check(tokens)
        if new.max_draft_tokens == 0:
            assert sources[DraftSource.TARGET] == len(tokens)
            assert finished.num_drafted_tokens == 0

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_integrity()
        state = self.scheduler._state
        table = state.table
        for slot in np.flatnonzero(table.status).tolist():
            computed, placeholders = (
                int(table.num_computed_tokens[slot]),
                int(table.num_output_placeholders[slot]),
            )
            num_tokens = int(table.num_tokens[slot])
            if table.status[slot] != SlotStatus.ENDED:
                # In decode, and as soon as a plan in flight ends the prefill, it is exact.
                assert computed - placeholders <= num_tokens - 1
                if table.num_emits_in_flight[slot] or computed - placeholders >= num_tokens - 1:
                    assert computed - placeholders == num_tokens - 1
            assert table.gain[slot] == self.gains[table.request_ids[slot]]
            assert not self.rests(table.request_ids[slot]) or table.window_end[slot] == 0
            held = int(state.blocks.num_blocks[slot]) * self.config.block_size
            assert held >= min(computed, int(table.max_length[slot]))
        assert len(state.in_flight) <= self.config.plan_depth

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.resume()
        for _ in range(20_000):
            if not self.live and not self.sent and not self.results:
                break
            if self.scheduler.can_send:
                self.send()
            self.scheduler.prepare()
            if self.sent:
                self.execute()
            if self.results:
                self.receive()
            self.is_sound()
        assert not self.live
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        assert self.scheduler.num_free_blocks == self.config.num_blocks


SchedulerMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestRandomCommands = SchedulerMachine.TestCase
