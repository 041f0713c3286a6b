"""Random requests, served by several workers plan by plan, whose answers must be the same."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes
from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import Admission, PlannedRow, WindowUpdate
from optimist_worker.execution.codec import write_plan
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


class Lockstep:
    """Streams to several workers."""

    def __init__(self, stubs: Sequence[Any]) -> None:
        self._calls = [stub.Execute() for stub in stubs]
        self._sequence = 0
        self.draft_sources: set[int] = set()
        """Where the drafts of all answers came from."""

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    async def execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteResponse:
        """Sends a plan to all; returns their answer."""
        await self.send(request)
        return await self.read()

    async def send(self, request: worker_pb2.ExecuteRequest) -> None:
        for call in self._calls:
            await call.write(request)

    async def read(self) -> worker_pb2.ExecuteResponse:
        answers: list[worker_pb2.ExecuteResponse] = [
            await asyncio.wait_for(call.read(), 60) for call in self._calls
        ]
        for answer in answers:
            answer.step_ns = answer.idle_ns = answer.draft_ns = 0
            assert answer == answers[0]
        self.draft_sources.update(from_bytes(answers[0].draft_sources).tolist())
        return answers[0]

    def cancel(self) -> None:
        for call in self._calls:
            call.cancel()


def a_window(rng: random.Random, wanted: Wanted, slot: int) -> WindowUpdate:
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


async def serve_all(lockstep: Lockstep, queue: list[Wanted], seed: int) -> int:
    """Serves requests to their ends, some preempted; returns how many drafts were accepted."""
    rng, held, accepted = random.Random(seed), dict[int, Wanted](), 0
    released: list[int] = []
    while queue or held:
        for slot in list(held):
            if held[slot].output and rng.random() < 0.05:
                # It goes on later, from its prompt and what it has said.
                queue.append(held.pop(slot))
                released.append(slot)
        admissions: list[Admission] = []
        for slot in range(_NUM_SLOTS):
            if slot not in held and queue:
                wanted = held[slot] = queue.pop(0)
                known, number = wanted.prompt + wanted.output, len(wanted.prompt)
                admissions.append(Admission(slot, f"r{slot}", known, number, wanted.sampling))
        new = {admission.slot for admission in admissions}
        plan = plan_rows(
            lockstep.next_sequence(),
            [
                PlannedRow(slot, rng.choice([1, 7, 8]), rng.choice([0, 3, 7]), _blocks(slot, new))
                for slot in held
            ],
            released_slots=released,
            admissions=admissions,
            windows=[a_window(rng, held[slot], slot) for slot in held if rng.random() < 0.6],
        )
        answer = await lockstep.execute(write_plan(plan))
        assert not answer.errors
        accepted += sum(from_bytes(answer.num_accepted_tokens).tolist())
        _take(answer, held)
        released = [slot for slot, wanted in held.items() if wanted.is_done]
        for slot in released:
            del held[slot]
    return accepted


def _blocks(slot: int, new: set[int]) -> list[int]:
    first = _BLOCKS_PER_SLOT * slot
    return list(range(first, first + _BLOCKS_PER_SLOT)) if slot in new else []


def _take(answer: worker_pb2.ExecuteResponse, held: dict[int, Wanted]) -> None:
    """Gives requests their new tokens."""
    tokens = from_bytes(answer.token_ids).tolist()
    numbers = from_bytes(answer.num_emitted_tokens).tolist()
    for slot, number in zip(from_bytes(answer.slots).tolist(), numbers, strict=True):
        wanted = held[slot]
        wanted.output += tokens[:number]
        tokens = tokens[number:]
        size = len(wanted.truth)
        assert wanted.output[:size] == wanted.truth[: len(wanted.output)]
