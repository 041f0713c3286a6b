"""Schedulers against workers that check every plan: random commands, sizes, depths and losses.

Some runs are recorded, and replayed in the end.
"""

import shutil
import tempfile
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from optimist.proposer.v1 import proposer_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2
from optimist_common.columns import floats_to_bytes, from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.network.endpoints import Peer
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import write_sampling
from optimist_common.scheduler_service.pause_mode import PauseMode
from optimist_scheduler.core.base.values import FinishReason, RejectionError, StepOutputs
from optimist_scheduler.core.requests.following import MOST_FIRST_GAIN, wakes
from optimist_scheduler.core.requests.request import Request
from optimist_scheduler.core.requests.table import SlotStatus
from optimist_scheduler.core.results.check import WRONG, ResultError
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.core.windows.window import WindowError
from optimist_scheduler.gateways.commands import stats_message
from optimist_scheduler.journal import OFF, Journal
from optimist_scheduler.proposers.waits import WindowWaits
from optimist_scheduler.service.replay import replay
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import describe_worker
from optimist_scheduler.workers.dispatcher import Dispatcher, Worker
from optimist_scheduler.workers.translate import new_request, step_result
from tests.scheduler.core.expected import MODELS, VOCAB_SIZE, Expected, TokenPath
from tests.scheduler.fake_worker import COLUMNS, FakeWorker, expected_output
from tests.scheduler.situation import (
    check_slots,
    make_window,
    rows,
    state,
    take_window,
    window_message,
    window_of,
)

MAX_LENGTH = 40
DRAFTERS = [
    None,
    Drafter(DraftSource.DRAFT_MODEL, 3, 3),
    Drafter(DraftSource.NGRAM, 3, 3),
    Drafter(DraftSource.EAGLE, 1, 1),
    # Trees: more nodes than levels.
    Drafter(DraftSource.MEDUSA, 6, 2),
    Drafter(DraftSource.EAGLE, 5, 3),
]

Node = tuple[int, int, int]
ONE, CHAIN = [(1, -1, -1)], [(1, -1, -1), (1, 0, -1)]
FAULTS: list[tuple[str, list[Node], list[float]]] = [
    ("token_ids: must be from", [(VOCAB_SIZE, -1, -1)], []),
    ("token_ids: must be from", [(-1, -1, -1)], []),
    ("token_ids: must be at most", [(1, node - 1, -1) for node in range(257)], []),
    ("prediction_positions", [(1, -1, 99)], []),
    ("prompt_positions", [(1, -1, -99)], []),
    ("parents: 1 is not", [(1, -1, -1), (2, 1, -1)], []),
    ("parents: siblings", [*ONE, *ONE], []),
    *(("values: must be", CHAIN, values) for values in ([0.5, 0.6], [1.0, float("nan")])),
    ("values: must be", ONE, [1.5]),
    ("values: 1 of 2", CHAIN, [0.5]),
    ("base: must be at least 0, not -1", ONE, []),
]
"""What a window is refused for, its nodes and values."""
SIZES = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([1, 2, 3, 4, 5, 16]),
        "num_extra_blocks": st.integers(0, 10),
        "max_num_seqs": st.integers(1, 4),
        "max_num_batched_tokens": st.integers(4, 20),
    }
)
"""Of each worker; each can hold any request, but not many of them."""
OPTIONS = st.fixed_dictionaries(
    {
        "num_speculative_tokens": st.integers(0, 6),
        "enable_prefix_caching": st.booleans(),
        "enable_optimistic_scheduling": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "draft_width": st.sampled_from(["fixed", "goodput"]),
        "prefill_share": st.sampled_from([0.0, 0.5, 1.0]),
        "drafter": st.sampled_from(DRAFTERS),
        "is_eager": st.booleans(),
    }
)
DEPTHS = st.one_of(
    st.fixed_dictionaries({"max_plans_in_flight": st.integers(1, 3)}),
    st.fixed_dictionaries({"num_pipeline_stages": st.integers(2, 3)}),
)
VALUES = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 30),
        "min_tokens": st.integers(0, 5),
        "priority": st.integers(0, 2),
        "max_draft_tokens": st.sampled_from([None, 0, 2]),
        "wants_prediction_positions": st.booleans(),
    }
)
SAMPLINGS = st.builds(
    SamplingParams,
    num_logprobs=st.sampled_from([None, None, 0, 2]),
    num_prompt_logprobs=st.sampled_from([None, None, 0, 3]),
    grammar=st.sampled_from(["", "", "start: /.*/"]),
)
NUMBERS = st.integers(0, 5)
"""Which of the workers that can."""

SPOILS = (
    *("lengths", "num_emitted_tokens", "token_ids", "num_drafted_tokens", "num_accepted_tokens"),
    *("draft_sources", "window_nodes", "accepted_nodes", "draft_positions", "logprobs", "bytes"),
    *("num_form_drafted_tokens", "num_form_accepted_tokens"),
)
"""What of a row may be wrong."""

Drafted = dict[str, dict[TokenPath, int]]
"""Position in the prediction of what was drafted of windows or found there, by request."""


class DrivenWorker(Worker):
    """A worker, and the plans and results between it and its scheduler."""

    def __init__(self, number: int, journal: Journal, settings: SchedulerSettings) -> None:
        super().__init__(Peer(f"w{number}:1", f"w{number}"), journal)
        self._settings = settings

    def reach(self, fake: FakeWorker) -> None:
        """Begins anew, perhaps with other memory."""
        self.fake = fake
        self.forget()
        assert not self.begin(describe_worker(fake.description, self._settings))

    def forget(self) -> None:
        """Loses what is between the worker and its scheduler."""
        self.sent: list[worker_pb2.ExecuteRequest] = []
        self.results: list[tuple[worker_pb2.ExecuteResponse, Drafted, set[str]]] = []
        """With what was drafted, and the requests whose drafts were looked up in predictions."""
        self.in_force: dict[int, Drafted] = {}
        """The windows when each plan was made."""
        self.fake.restart()

    @property
    def in_flight(self) -> list[list[int]]:
        """Slots of the plans without a result."""
        first = [result.slots for result, *_ in self.results]
        return [from_bytes(each).tolist() for each in (*(plan.slots for plan in self.sent), *first)]


def spoil_row(result: worker_pb2.ExecuteResponse, row: int, name: str) -> bool:
    """Makes something of a row wrong; returns False if there is nothing of the kind."""
    if name in ("logprobs", "bytes"):
        return spoil_logprobs(result, int(from_bytes(result.slots)[row]), is_cut=name == "bytes")
    columns = {each: from_bytes(getattr(result, each)).tolist() for each in COLUMNS}
    emitted, sources = columns["num_emitted_tokens"], columns["draft_sources"]
    of_form = columns["num_form_accepted_tokens"] or [0] * len(sources)
    counts = [
        (count - of_row) * (source == DraftSource.PREDICTION)
        for count, of_row, source in zip(
            columns["num_accepted_tokens"], of_form, sources, strict=True
        )
    ]
    exists = {
        "token_ids": emitted[row],
        "accepted_nodes": counts[row] and columns[name],
        "window_nodes": sources[row] == DraftSource.PREDICTION and columns[name],
    }
    if not exists.get(name, columns[name]):
        return False
    places = {"token_ids": sum(emitted[: row + 1]) - 1, "accepted_nodes": sum(counts[:row])}
    if name == "num_emitted_tokens":
        columns["token_ids"].insert(sum(emitted[: row + 1]), 1)
        emitted[row] += 1
    else:
        columns[name][places.get(name, row)] += 1000
    for each, values in columns.items():
        setattr(result, each, to_bytes(values))
    return True


def spoil_logprobs(result: worker_pb2.ExecuteResponse, slot: int, *, is_cut: bool) -> bool:
    found = [each for each in result.logprobs if each.slot == slot]
    for each in found:
        each.logprobs = floats_to_bytes([float("nan")] * (len(each.logprobs) // 4)) + b"1" * is_cut
    return bool(found)


def can(condition: Callable[[DrivenWorker], bool]) -> Any:
    """Some connected worker must be able to."""
    return precondition(lambda self: any(map(condition, self.connected)))


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        sizes=st.one_of(*(st.lists(SIZES, min_size=1, max_size=size) for size in (1, 3))),
        num_blocks=st.one_of(st.none(), st.integers(4, 30)),
        options=OPTIONS,
        depth=DEPTHS,
        is_always_ahead=st.booleans(),
        is_recorded=st.sampled_from([False, False, True]),
        max_wait_seconds=st.sampled_from([0, 0, 4]),
    )
    def begin(
        self,
        sizes: list[dict[str, int]],
        num_blocks: int | None,
        options: dict[str, Any],
        depth: dict[str, int],
        is_always_ahead: bool,
        is_recorded: bool,
        max_wait_seconds: float,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        if is_always_ahead:
            self.patch.setattr("optimist_scheduler.core.schedule.apply.LEAST_CHANCE", 0.0)
        self.is_eager, self.drafter = options.pop("is_eager"), options.pop("drafter")
        bounds: dict[str, Any] = {"max_num_waiting": 5, "max_wait_seconds": max_wait_seconds}
        chosen = SchedulerSettings(starvation_seconds=3, **bounds, **options, **depth)
        self.is_bounded = max_wait_seconds > 0
        self.log: Path | None = None
        self.journal = OFF
        if is_recorded:
            self.log = Path(tempfile.mkdtemp()) / "log"
            self.journal = Journal(str(self.log), 64)
            self.journal.begin(chosen.decisive)
        self.num_blocks = num_blocks if len(sizes) == 1 else None
        """Of an only worker, which may hold short requests alone."""
        self.failing: set[str] = set()
        self.spoilt: set[str] = set()
        """The request whose row is wrong in the result that is being settled."""
        self.dispatcher = Dispatcher(self.journal)
        self.workers: list[DrivenWorker] = []
        for number, size in enumerate(sizes):
            worker = DrivenWorker(number, self.journal, chosen)
            worker.reach(self.fake_of(size))
            self.workers.append(worker)
            self.dispatcher.join(worker)
        self.max_length = self.workers[0].scheduler.config.max_length
        self.now = 0.0
        self.num_plans = 0
        self.requests: dict[str, Expected] = {}
        self.live: dict[str, Expected] = {}
        self.mode: PauseMode | None = None

    def fake_of(self, size: dict[str, int]) -> FakeWorker:
        sizes: dict[str, Any] = dict(size)
        least = -(-MAX_LENGTH // size["block_size"]) + sizes.pop("num_extra_blocks")
        num_blocks = self.num_blocks or least
        sizes |= {"vocab_size": VOCAB_SIZE, "max_model_len": MAX_LENGTH, "num_blocks": num_blocks}
        fake = FakeWorker(drafter=self.drafter, **sizes)
        fake.failing = self.failing
        return fake

    @property
    def connected(self) -> list[DrivenWorker]:
        return [worker for worker in self.workers if worker.is_connected]

    def choose(self, number: int, condition: Callable[[DrivenWorker], bool]) -> DrivenWorker:
        able = list(filter(condition, self.connected))
        return able[number % len(able)]

    def scheduler_of(self, request_id: str) -> Scheduler:
        (found,) = (each.scheduler for each in self.workers if each.scheduler.has(request_id))
        return found

    # Commands.

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        follows=st.integers(0, 9),
        num_given=st.sampled_from([0, 0, 0, 1, 5]),
        stops=st.lists(st.integers(0, 6), max_size=1),
        is_predicted=st.booleans(),
        is_followed=st.booleans(),
        sampling=SAMPLINGS,
        values=VALUES,
    )
    def add(
        self,
        prompt: list[int],
        follows: int,
        num_given: int,
        stops: list[int],
        is_predicted: bool,
        is_followed: bool,
        sampling: SamplingParams,
        values: dict[str, Any],
    ) -> None:
        handle = len(self.requests) + 1
        if follows in range(1, handle):
            # Goes on with what another has said, or will.
            other = self.requests[f"r{follows}"]
            prompt = [*other.new.prompt_token_ids, *other.truth][: len(prompt) + 8] + prompt[:2]
        truth = expected_output(prompt, VOCAB_SIZE, len(prompt) + 35, set())
        limit = min(len(prompt) + values["max_tokens"], self.max_length)
        text = expected_output(prompt, VOCAB_SIZE, limit, set(stops), values["min_tokens"])
        given = text[: min(num_given, max(len(text) - 1, 0))]
        values["priority"] *= self.workers[0].scheduler.config.policy == "priority"
        message = scheduler_pb2.Add(
            handle=handle,
            request_id=f"r{handle}",
            prompt_token_ids=to_bytes(prompt),
            predicted_token_ids=to_bytes(truth if is_predicted else []),
            output_token_ids=to_bytes(given),
            stop_token_ids=to_bytes(stops),
            sampling=write_sampling(sampling),
            **values,
        )
        new = replace(new_request(message, owner=3), is_followed=is_followed)
        able = self.connected or self.workers
        is_full = all(worker.scheduler.num_waiting >= 5 for worker in able)
        try:
            self.dispatcher.add(new, self.now, message)
        except RejectionError as error:
            if error.finished.reason is FinishReason.OVERLOADED:
                assert is_full or self.is_bounded
            else:
                assert len(prompt) >= self.max_length
            return
        assert not is_full
        with pytest.raises(RejectionError, match="is in use") as caught:
            self.dispatcher.add(new, self.now, message)
        assert caught.value.finished.reason is FinishReason.REFUSED
        expected = Expected(new, self.drafter)
        if new.is_followed and len(new.predicted_token_ids):
            # What earlier ones have gained, of late.
            request = self.find_request(new.request_id)
            assert request is not None
            assert 0 <= request.gain <= MOST_FIRST_GAIN
            expected.gain = request.gain
        self.requests[new.request_id] = self.live[new.request_id] = expected
        if self.is_eager:
            self.propose(expected)

    def find_request(self, request_id: str) -> Request | None:
        found = [worker.scheduler._requests.get(request_id) for worker in self.workers]
        return next((each for each in found if each is not None), None)

    def find_worker(self, request: Request) -> DrivenWorker:
        return next(each for each in self.workers if request.request_id in each.scheduler._requests)

    def draw_live(self, data: Any) -> Expected:
        return self.live[data.draw(st.sampled_from(sorted(self.live)))]

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        nodes=st.lists(st.tuples(st.integers(0, 14), st.booleans(), st.booleans()), max_size=9),
        fault=st.none() | st.sampled_from(FAULTS),
        seed=st.integers(0, 2**16),
    )
    def set_windows(
        self,
        data: Any,
        nodes: list[tuple[int, bool, bool]],
        fault: tuple[str, list[Node], list[float]] | None,
        seed: int,
    ) -> None:
        """Windows of one answer, the first of which may be no window."""
        messages, outcomes = [], []
        if fault is not None:
            expected = self.draw_live(data)
            base = -1 if fault[0].startswith("base") else max(expected.base, 0)
            window = window_of(base, *fault[1:])
            messages.append(window_message(expected.new.request_id, window))
            is_late = base < expected.base
        for number, each in enumerate(nodes):
            message, is_taken = self.make_window(data, *each, seed + number)
            messages.append(message)
            outcomes.append(is_taken)
        got = self.dispatcher.take_windows(messages)
        if fault is not None:
            error = got.pop(0)
            assert error is False if is_late else isinstance(error, WindowError)
            assert is_late or str(error).startswith(fault[0])
        assert got == outcomes

    def make_window(
        self, data: Any, num_nodes: int, is_chain: bool, has_values: bool, seed: int
    ) -> tuple[proposer_pb2.Window, bool]:
        """Returns a window and whether it is taken next.

        A tree, along what the model says or not, with any positions and values.
        """
        resting = sorted(name for name, each in self.live.items() if each.rests)
        request_id = data.draw(st.sampled_from(resting or sorted(self.live)))
        expected = self.live[request_id]
        output, truth = expected.output, expected.truth
        base = data.draw(st.integers(0, len(output) + 1))
        random, most = Random(seed), len(expected.new.predicted_token_ids)
        least = -1 - len(expected.new.prompt_token_ids)
        nodes: list[Node] = []
        paths: list[TokenPath] = []
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
            nodes.append((token, parent, random.randrange(least, most)))
        # Mostly so small that they promise less than a token.
        values = sorted((random.random() ** 4 for _ in nodes), reverse=True) if has_values else []
        window = window_of(base, nodes, values)
        since = tuple(output[base:])
        is_late = base > len(output) or (len(since) > 0 and since not in paths)
        is_taken = base >= expected.base and not is_late
        if is_taken and expected.rests:
            left = window.pass_tokens(np.array(since, np.int32))
            assert left is not None
            scheduler = self.scheduler_of(request_id)
            slot = scheduler._requests[request_id].slot
            is_taken = wakes(left, scheduler._state.widths.windows.scales[slot] if slot >= 0 else 1)
        if is_taken:
            positions = [position for _, _, position in nodes]
            expected.follow(base, dict(zip(paths, positions, strict=True)))
        return window_message(request_id, window), is_taken

    @precondition(lambda self: self.live)
    @rule(data=st.data(), rests=st.booleans())
    def gain_little(self, data: Any, rests: bool) -> None:
        """The request rests, or does with the next pass that brings no draft."""
        expected = self.draw_live(data)
        if expected.gain < 64 or self.log is not None:
            return
        request_id = expected.new.request_id
        scheduler = self.scheduler_of(request_id)
        state, request = scheduler._state, scheduler._requests[request_id]
        rests = rests and request.slot in state.running.tolist()
        expected.gain = request.gain = 63 if rests else 64
        if request.slot >= 0:
            state.table.gain[request.slot] = request.gain
        if rests:
            state.rest(request.slot)
            expected.window = {}

    def propose(self, expected: Expected) -> None:
        """Sets a right window, as a proposer that keeps up would."""
        base = len(expected.output)
        tokens = expected.truth[base : base + 12]
        values = [0.9**place for place in range(len(tokens))]
        position = base if len(expected.new.predicted_token_ids) else -1
        window = make_window(base, position, tokens, values)
        taken = take_window(self.dispatcher, window_message(expected.new.request_id, window))
        assert taken == (not expected.rests or len(tokens) > 0)
        if taken:
            places = range(len(tokens))
            nodes = {tuple(tokens[: place + 1]): position + place for place in places}
            expected.follow(base, nodes if position >= 0 else dict.fromkeys(nodes, -1))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), chance=st.integers(0, 3))
    def abort(self, data: Any, chance: int) -> None:
        if chance:
            return
        expected = self.draw_live(data)
        request_id = expected.new.request_id
        finished = self.dispatcher.abort(request_id)
        assert finished is not None
        assert finished.reason is FinishReason.ABORTED
        expected.check_account(finished)
        assert self.dispatcher.abort(request_id) is None
        assert not self.dispatcher.set_priority(request_id, 1)
        window = window_of(99, [(1, -1, -1)])
        assert not take_window(self.dispatcher, window_message(request_id, window))
        del self.live[request_id]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), priority=st.integers(0, 3))
    def set_priority(self, data: Any, priority: int) -> None:
        assert self.dispatcher.set_priority(self.draw_live(data).new.request_id, priority)

    @rule(mode=st.sampled_from(PauseMode), chance=st.integers(0, 5))
    def pause(self, mode: PauseMode, chance: int) -> None:
        if chance:
            return
        ended = self.dispatcher.pause(mode)
        self.mode = mode
        ids = [each.request_id for each in ended]
        if len(self.workers) > 1:
            ids.sort(key=list(self.live).index)
        assert ids == (list(self.live) if mode is PauseMode.ABORT else [])
        for each in ended:
            assert each.finished.reason is FinishReason.ABORTED
            self.live.pop(each.request_id).check_account(each.finished)

    @rule()
    def resume(self) -> None:
        self.dispatcher.resume()
        self.mode = None

    @rule(seconds=st.integers(1, 3))
    def let_time_pass(self, seconds: int) -> None:
        self.now += seconds

    @precondition(lambda self: self.live)
    @rule(data=st.data(), chance=st.integers(0, 5))
    def fail(self, data: Any, chance: int) -> None:
        """From now on no worker can run a request."""
        if not chance:
            self.failing.add(self.draw_live(data).new.request_id)

    # The scheduler.

    @can(lambda worker: True)
    @rule(number=NUMBERS)
    def prepare(self, number: int) -> None:
        """Neither this nor reading changes anything."""
        worker = self.choose(number, lambda worker: True)
        scheduler, before = worker.scheduler, state(worker.scheduler)
        worker.prepare()
        stats_message([scheduler], WindowWaits(0.0, pays_always=False), 1, 0)
        scheduler.find_unaligned()
        scheduler.compute_schedule()
        assert state(scheduler) == before

    @can(lambda worker: worker.scheduler.can_send)
    @rule(number=NUMBERS)
    def send(self, number: int) -> None:
        self.send_to(self.choose(number, lambda worker: worker.scheduler.can_send))

    def send_to(self, worker: DrivenWorker) -> None:
        scheduler = worker.scheduler
        if self.is_eager:
            for request_id in scheduler.find_unaligned():
                expected = self.live[request_id]
                assert expected.gain >= scheduler._state.table.wait_gain
                self.propose(expected)
            for expected in self.live.values():
                if expected.rests:
                    self.propose(expected)
        running = scheduler._state.running.tolist()
        decision, again = scheduler.compute_schedule(), scheduler.compute_schedule()
        assert decision.rows.slots.tolist() == again.rows.slots.tolist()
        assert decision.rows.num_draft_tokens.tolist() == again.rows.num_draft_tokens.tolist()
        if running:
            assert running[0] not in decision.preempted or scheduler.config.policy == "priority"
        waiting = [*scheduler._state.waiting.requests]
        plan = worker.schedule(self.now)
        if scheduler.config.policy == "fcfs" and not scheduler.config.enable_prefix_caching:
            self.check_overtaken(waiting, [*scheduler._state.waiting.requests])
        if plan is None:
            is_busy = scheduler.num_running + scheduler.num_waiting > 0
            assert not is_busy or self.mode is not None or scheduler.num_plans_in_flight
            return
        assert self.mode is None or (self.mode is PauseMode.WAIT and not plan.admissions)
        worker.sent.append(plan)
        self.num_plans += 1
        worker.in_force[plan.sequence] = {name: each.window for name, each in self.live.items()}
        in_flight = worker.in_flight
        assert len(in_flight) == scheduler.num_plans_in_flight <= scheduler.config.plan_depth
        if scheduler.config.num_pipeline_stages > 1:
            # A request is in one stage at a time.
            slots = [slot for each in in_flight for slot in each]
            assert len(slots) == len(set(slots))

    def check_overtaken(self, before: list[Request], after: list[Request]) -> None:
        """Checks that requests which wait were passed by in this step only by shorter ones."""
        admitted = [each for each in before if each not in after]
        for request in after:
            length = len(request.token_ids)
            # A preempted one has come to wait just now, one that starved goes first.
            later = [each for each in admitted if each.order > request.order]
            assert request not in before or all(len(each.token_ids) < length for each in later)

    # The workers.

    @can(lambda worker: bool(worker.sent))
    @rule(number=NUMBERS)
    def execute(self, number: int) -> None:
        self.execute_at(self.choose(number, lambda worker: bool(worker.sent)))

    def execute_at(self, worker: DrivenWorker) -> None:
        """Lets a worker run a plan; notes what it drafted of windows, which it must have."""
        worker.fake.drafted.clear()
        result = worker.fake.execute(worker.sent.pop(0))
        drafted: Drafted = {}
        for request_id, output, paths, start in worker.fake.drafted:
            windows = worker.in_force[result.sequence][request_id] if paths and start < 0 else {}
            drafted[request_id] = {
                output + path: start + len(path) - 1 if start >= 0 else windows[output + path]
                for path in paths
            }
        looked_up = {request_id for request_id, *_, start in worker.fake.drafted if start >= 0}
        worker.results.append((result, drafted, looked_up))

    @can(lambda worker: bool(worker.results))
    @rule(number=NUMBERS)
    def receive(self, number: int) -> None:
        self.receive_from(self.choose(number, lambda worker: bool(worker.results)))

    @can(lambda worker: bool(worker.results))
    @rule(number=NUMBERS, data=st.data(), chance=st.integers(0, 3))
    def receive_spoilt(self, number: int, data: Any, chance: int) -> None:
        """Of a result one row is wrong: its request ends, and nobody else notices."""
        if chance:
            return
        worker = self.choose(number, lambda worker: bool(worker.results))
        result = worker.results[0][0]
        row = data.draw(st.integers(0, len(from_bytes(result.slots)) - 1))
        if not spoil_row(result, row, data.draw(st.sampled_from(SPOILS))):
            return
        slot = int(from_bytes(result.slots)[row])
        table = worker.scheduler._state.table
        request_id, status = table.request_ids[slot], table.status[slot]
        is_alive = request_id in self.live and status in (SlotStatus.RUNNING, SlotStatus.LEAVING)
        if is_alive and not any(error.slot == slot for error in result.errors):
            self.spoilt.add(request_id)
        self.receive_from(worker)
        assert request_id not in self.spoilt or request_id not in self.live
        self.spoilt.discard(request_id)

    def receive_from(self, worker: DrivenWorker) -> None:
        result, drafted, looked_up = worker.results.pop(0)
        is_quiet = worker.scheduler.is_quiet
        outputs = worker.settle(step_result(result), result)
        assert not is_quiet or len(outputs.handles) == 0
        self.take(outputs, drafted, looked_up)

    @can(lambda worker: bool(worker.results))
    @rule(number=NUMBERS, sequence=st.sampled_from([-2, -1, 1]))
    def receive_in_disorder(self, number: int, sequence: int) -> None:
        """A result says that it is another plan's."""
        worker = self.choose(number, lambda worker: bool(worker.results))
        result = worker_pb2.ExecuteResponse()
        result.CopyFrom(worker.results[0][0])
        result.sequence += sequence
        scheduler = worker.scheduler
        before, stats = state(scheduler), asdict(scheduler.stats)
        with pytest.raises(ResultError, match="is not the next one"):
            worker.settle(step_result(result), result)
        assert asdict(scheduler.stats) == stats
        assert state(scheduler) == before

    @can(lambda worker: True)
    @rule(number=NUMBERS, is_run=st.booleans(), comes_back=st.booleans(), chance=st.integers(0, 5))
    def lose(self, number: int, is_run: bool, comes_back: bool, chance: int) -> None:
        """The stream broke, before or after the worker ran a plan."""
        if chance:
            return
        worker = self.choose(number, lambda worker: True)
        if worker.sent and is_run:
            worker.fake.execute(worker.sent[0])
        worker.forget()
        worker.is_connected = False
        self.adopt(self.dispatcher.evacuate([worker]))
        if self.connected:
            assert worker.scheduler.num_running + worker.scheduler.num_waiting == 0
        assert worker.scheduler.num_free_blocks == worker.scheduler.config.num_blocks
        if comes_back:
            self.reach(worker, worker.fake)

    @precondition(lambda self: len(self.connected) < len(self.workers))
    @rule(number=NUMBERS, size=SIZES)
    def come_back(self, number: int, size: dict[str, int]) -> None:
        """Other memory, perhaps, and what waits for any worker goes on."""
        absent = [each for each in self.workers if not each.is_connected]
        worker = absent[number % len(absent)]
        self.reach(worker, worker.fake if self.num_blocks else self.fake_of(size))

    def reach(self, worker: DrivenWorker, fake: FakeWorker) -> None:
        requests = self.dispatcher.evacuate([w for w in self.workers if not w.is_connected])
        worker.reach(fake)
        self.adopt(requests)
        assert all(each.is_connected or not each.scheduler.num_waiting for each in self.workers)

    def adopt(self, requests: list[Any]) -> None:
        assert [each.order for each in requests] == sorted(each.order for each in requests)
        for request in requests:
            expected = self.live[request.request_id]
            prompt = expected.new.prompt_token_ids
            assert request.token_ids.tolist() == [*prompt, *expected.output]
        for ended in self.dispatcher.adopt(requests):
            assert ended.finished.reason is FinishReason.ERROR
            # Losses at random may come whenever it runs alone.
            assert ended.finished.message.startswith("the worker was lost ")
            self.live.pop(ended.request_id).check_account(ended.finished)

    # What must hold.

    def take(self, outputs: StepOutputs, drafted: Drafted, looked_up: Collection[str]) -> None:
        assert set(outputs.owners.tolist()) <= {3}
        for reported in outputs.logprobs:
            assert reported.owner == 3
            self.requests[f"r{reported.handle}"].reported.add(reported.logprobs)
        positions = {reported.handle: reported.positions.tolist() for reported in outputs.positions}
        counted = outputs.handles, outputs.draft_sources, outputs.num_accepted_tokens
        columns = [each.tolist() for each in (*counted, outputs.num_form_tokens)]
        texts = rows(outputs)
        for handle, source, accepted, num_of_form in zip(*columns, strict=True):
            path = drafted.get(f"r{handle}", {})
            self.live[f"r{handle}"].take(
                texts[handle],
                source,
                accepted,
                path,
                positions.pop(handle, None),
                num_of_form=num_of_form,
                is_looked_up=f"r{handle}" in looked_up,
            )
            if source in MODELS and (request := self.find_request(f"r{handle}")) is not None:
                gains = self.find_worker(request).scheduler._state.table.gain
                gain = request.gain if request.slot < 0 else int(gains[request.slot])
                self.live[f"r{handle}"].learn_from(gain)
        assert not positions
        for request_id, tokens in outputs.observed:
            self.live[request_id].observe(tokens)
        for handle in texts:
            expected = self.live[f"r{handle}"]
            expected.reported.check(expected.output)
        for ended in outputs.ended:
            expected = self.live.pop(ended.request_id)
            expected.check_account(ended.finished)
            if ended.finished.reason is FinishReason.ERROR:
                is_wrong = ended.finished.message.startswith(WRONG)
                assert ended.request_id in (self.spoilt if is_wrong else self.failing)
            else:
                expected.check_end(ended.finished, self.max_length)
        for handle in texts:
            if f"r{handle}" in self.live:
                self.live[f"r{handle}"].check_observed()

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        for worker in self.workers:
            check_slots(worker.scheduler)
            waiting = worker.scheduler._state.waiting.requests
            assert all(one.order < other.order for one, other in pairwise(waiting))
            assert worker.scheduler.is_paused == (self.mode is not None)
            self.check_gains(worker)
        found = [name for worker in self.workers for name in worker.scheduler._requests]
        assert sorted(found) == sorted(self.live)
        assert self.dispatcher.num_running + self.dispatcher.num_waiting == len(self.live)
        in_flight = any(worker.in_flight for worker in self.workers)
        if self.dispatcher.is_quiet:
            assert not in_flight
            assert self.mode is PauseMode.KEEP or self.dispatcher.num_running == 0
        elif self.mode is PauseMode.KEEP:
            assert in_flight or any(each.results for each in self.workers)

    def check_gains(self, worker: DrivenWorker) -> None:
        table = worker.scheduler._state.table
        for slot in np.flatnonzero(table.status).tolist():
            expected = self.requests[table.request_ids[slot]]
            # What ended learns nothing more from a model's pass, see `learn_from`.
            is_over = table.request_ids[slot] not in self.live
            if not (is_over and self.drafter is not None and self.drafter.source in MODELS):
                assert table.gain[slot] == expected.gain
            assert not expected.rests or table.window_end[slot] == 0

    def teardown(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        try:
            self.finish()
            if self.log is not None:
                self.replay(self.log)
        finally:
            self.patch.undo()
            if self.log is not None:
                shutil.rmtree(self.log.parent)

    def replay(self, log: Path) -> None:
        for worker in self.workers:
            worker.end_journal()
        self.journal.close()
        with log.open("rb") as file:
            report = replay(file)
        assert not report.difference
        assert (report.num_runs, report.num_plans) == (1, self.num_plans)

    def finish(self) -> None:
        """Runs until all has ended."""
        self.resume()
        for worker in self.workers:
            if not worker.is_connected:
                self.reach(worker, worker.fake)
        for _ in range(20_000):
            if not self.live and not any(each.sent or each.results for each in self.workers):
                break
            for worker in self.workers:
                if worker.scheduler.can_send:
                    self.send_to(worker)
                worker.prepare()
                if worker.sent:
                    self.execute_at(worker)
                if worker.results:
                    self.receive_from(worker)
            self.is_sound()
        assert not self.live
        for worker in self.workers:
            assert worker.scheduler.num_free_blocks == worker.scheduler.config.num_blocks


SchedulerMachine.TestCase.settings = settings(
    max_examples=2 * settings().max_examples,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestRandomCommands = SchedulerMachine.TestCase
