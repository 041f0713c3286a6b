"""Random requests, served by several workers plan by plan, whose answers must be the same."""

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes
from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import Admission, PlannedRow, WindowUpdate
from optimist_worker.execution.codec import write_plan
from tests.worker.call import said
from tests.worker.step import plan_rows

_NUM_SLOTS, _BLOCKS_PER_SLOT = 4, 24


@dataclass
class Wanted:
    """A request and the text that it has alone, without drafts."""

    prompt: list[int]
    sampling: SamplingParams
    truth: list[int]
    output: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return len(self.output) >= len(self.truth)

    def take(self, tokens: list[int]) -> None:
        """Takes new output, which must be that of the text."""
        self.output += tokens
        size = len(self.truth)
        assert self.output[:size] == self.truth[: len(self.output)]


class Lockstep:
    """Streams to several workers."""

    def __init__(self, stubs: Sequence[Any]) -> None:
        self._calls = [stub.Execute() for stub in stubs]
        self._sequence = 0
        self.draft_sources: set[int] = set()
        """Where the drafts of all answers came from."""
        self.num_accepted = 0

    async def send(self, request: worker_pb2.ExecuteRequest) -> None:
        """Sends a plan, as the next in turn, to all."""
        self._sequence += 1
        request.sequence = self._sequence
        for call in self._calls:
            await call.write(request)

    async def read(self) -> worker_pb2.ExecuteResponse:
        """Returns the answer of all."""
        answers: list[worker_pb2.ExecuteResponse] = [
            await asyncio.wait_for(call.read(), 60) for call in self._calls
        ]
        for answer in answers:
            answer.step_ns = answer.idle_ns = answer.draft_ns = 0
            assert answer == answers[0]
        self.draft_sources.update(from_bytes(answers[0].draft_sources).tolist())
        self.num_accepted += sum(from_bytes(answers[0].num_accepted_tokens).tolist())
        return answers[0]

    def cancel(self) -> None:
        for call in self._calls:
            call.cancel()


def _window(rng: random.Random, wanted: Wanted, slot: int) -> WindowUpdate:
    """Makes a chain or tree of what comes next, some of it wrong."""
    base = len(wanted.output)
    token_ids = [
        token if rng.random() < 0.85 else rng.randrange(3, 250)
        for token in wanted.truth[base : base + 8]
    ]
    parents: list[int] = []
    if rng.random() < 0.5:
        # A wrong child beside each right one.
        pairs = [(token, rng.randrange(3, 250)) for token in token_ids]
        token_ids = [token for pair in pairs for token in pair]
        parents = [-1, -1] + [2 * (node // 2 - 1) for node in range(2, len(token_ids))]
    return WindowUpdate(slot, base, token_ids, parents)


class _Group:
    """Slots whose requests are in one plan at a time."""

    def __init__(self, slots: range) -> None:
        self.slots = slots
        self.held: dict[int, Wanted] = {}
        self.released: list[int] = []

    def admit(self, queue: deque[Wanted]) -> list[Admission]:
        admissions = []
        for slot in self.slots:
            if slot not in self.held and queue:
                wanted = self.held[slot] = queue.popleft()
                known, number = wanted.prompt + wanted.output, len(wanted.prompt)
                admissions.append(Admission(slot, f"r{slot}", known, number, wanted.sampling))
        return admissions

    def take(self, answer: worker_pb2.ExecuteResponse) -> None:
        """Gives requests their new tokens; those that are done give their slots back."""
        for slot, tokens in said(answer).items():
            self.held[slot].take(tokens)
            if self.held[slot].is_done:
                del self.held[slot]
                self.released.append(slot)

    def preempt(self, rng: random.Random, queue: deque[Wanted]) -> None:
        """Takes slots from some requests, which go on later from their prompts and outputs."""
        for slot in list(self.held):
            if rng.random() < 0.05:
                queue.append(self.held.pop(slot))
                self.released.append(slot)


async def serve_all(
    lockstep: Lockstep, requests: Sequence[Wanted], seed: int, num_groups: int = 1
) -> int:
    """Serves requests to their ends; returns how many plans overlapped others.

    Slots are divided into groups, each with a plan of its own in flight, as to the stages of a
    pipeline. Windows come with any plan, also for slots of another that is in flight.
    """
    rng, queue, num_overlapped = random.Random(seed), deque(requests), 0
    size = _NUM_SLOTS // num_groups
    groups = [_Group(range(size * index, size * (index + 1))) for index in range(num_groups)]
    in_flight: deque[_Group] = deque()
    while queue or in_flight or any(group.held for group in groups):
        for group in groups:
            if group not in in_flight and (group.held or queue):
                num_overlapped += bool(in_flight)
                await lockstep.send(_plan(rng, group, groups, queue))
                in_flight.append(group)
        answer = await lockstep.read()
        assert not answer.errors
        group = in_flight.popleft()
        group.take(answer)
        group.preempt(rng, queue)
    assert all(wanted.is_done for wanted in requests)
    return num_overlapped


def _plan(
    rng: random.Random, group: _Group, groups: Sequence[_Group], queue: deque[Wanted]
) -> worker_pb2.ExecuteRequest:
    parts: dict[str, Any] = {"released_slots": group.released}
    group.released = []
    admissions = group.admit(queue)
    blocks = {
        admission.slot: [_BLOCKS_PER_SLOT * admission.slot + i for i in range(_BLOCKS_PER_SLOT)]
        for admission in admissions
    }
    windows = [
        _window(rng, wanted, slot)
        for other in groups
        for slot, wanted in other.held.items()
        if rng.random() < 0.5
    ]
    rows = [
        PlannedRow(slot, rng.choice([1, 7, 8]), rng.choice([0, 3, 7]), blocks.get(slot, []))
        for slot in group.held
    ]
    return write_plan(plan_rows(0, rows, admissions=admissions, windows=windows, **parts))
