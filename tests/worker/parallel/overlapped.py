"""Requests in groups, each with a plan of its own on its way, as to the stages of a pipeline."""

import random
from collections import deque
from collections.abc import Sequence

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes
from optimist_worker.core.plan import Admission, PlannedRow
from optimist_worker.execution.codec import write_plan
from tests.worker.parallel.lockstep import Lockstep, Wanted, a_window
from tests.worker.step import plan_rows

_SLOTS_PER_GROUP, _BLOCKS_PER_SLOT = 2, 24


class _Group:
    """Slots whose requests are in one plan at a time."""

    def __init__(self, number: int) -> None:
        first = number * _SLOTS_PER_GROUP
        self.slots = range(first, first + _SLOTS_PER_GROUP)
        self.held: dict[int, Wanted] = {}
        self.released: list[int] = []

    def admit(self, queue: deque[Wanted]) -> list[Admission]:
        admissions = []
        for slot in self.slots:
            if slot not in self.held and queue:
                wanted = self.held[slot] = queue.popleft()
                known = wanted.prompt + wanted.output
                admission = Admission(slot, "r", known, len(wanted.prompt), wanted.sampling)
                admissions.append(admission)
        return admissions

    def take(self, answer: worker_pb2.ExecuteResponse) -> None:
        """Gives requests their new tokens; those that are done give their slots back."""
        tokens = from_bytes(answer.token_ids).tolist()
        numbers = from_bytes(answer.num_emitted_tokens).tolist()
        for slot, number in zip(from_bytes(answer.slots).tolist(), numbers, strict=True):
            wanted = self.held[slot]
            wanted.output += tokens[:number]
            tokens = tokens[number:]
            size = len(wanted.truth)
            assert wanted.output[:size] == wanted.truth[: len(wanted.output)]
            if wanted.is_done:
                del self.held[slot]
                self.released.append(slot)


async def serve_overlapped(
    lockstep: Lockstep, requests: Sequence[Wanted], num_groups: int, seed: int
) -> int:
    """Serves requests to their ends, some preempted; returns how many plans overlapped others.

    Windows come with any plan, also for slots of another that is on its way.
    """
    rng, queue = random.Random(seed), deque(requests)
    groups, num_overlapped = [_Group(number) for number in range(num_groups)], 0
    on_their_way: deque[_Group] = deque()
    while queue or on_their_way or any(group.held for group in groups):
        for group in groups:
            if group in on_their_way or not (group.held or queue):
                continue
            num_overlapped += bool(on_their_way)
            await lockstep.send(_plan(lockstep, rng, group, groups, queue))
            on_their_way.append(group)
        answer = await lockstep.read()
        assert not answer.errors
        group = on_their_way.popleft()
        group.take(answer)
        for slot in list(group.held):
            if rng.random() < 0.05:
                # It goes on later, from its prompt and what it has said.
                queue.append(group.held.pop(slot))
                group.released.append(slot)
    return num_overlapped


def _plan(
    lockstep: Lockstep,
    rng: random.Random,
    group: _Group,
    groups: Sequence[_Group],
    queue: deque[Wanted],
) -> worker_pb2.ExecuteRequest:
    released, group.released = group.released, []
    admissions = group.admit(queue)
    new = {admission.slot for admission in admissions}
    windows = [
        a_window(rng, wanted, slot)
        for other in groups
        for slot, wanted in other.held.items()
        if rng.random() < 0.5
    ]
    rows = []
    for slot in group.held:
        first = _BLOCKS_PER_SLOT * slot
        blocks = list(range(first, first + _BLOCKS_PER_SLOT)) if slot in new else []
        rows.append(PlannedRow(slot, rng.choice([1, 7, 8]), rng.choice([0, 3, 7]), blocks))
    return write_plan(
        plan_rows(
            lockstep.next_sequence(),
            rows,
            released_slots=released,
            admissions=admissions,
            windows=windows,
        )
    )
