"""Requests that decode in several plans at a time, sent to a worker as a scheduler would."""

import time
from collections import deque
from typing import Any

from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.network.channel import open_channel

PROMPT = list(range(3, 11))
_BLOCK_SIZE = 16


class PipelineLoad:
    """Rows shared evenly among plans, each of which is sent again when its answer is there."""

    def __init__(self, num_rows: int, num_plans: int, num_steps: int) -> None:
        """Sets a load up.

        Args:
            num_rows: Requests; what is left over after sharing is left out.
            num_plans: Plans in flight, without common rows.
            num_steps: Tokens of each request after the first.
        """
        self.rows_per_plan = num_rows // num_plans
        self.num_tokens = self.rows_per_plan * num_plans * num_steps
        self._num_plans, self._num_steps = num_plans, num_steps
        self._sequence = 0

    async def run(self, address: str) -> float:
        """Runs the load; returns the seconds that decoding took.

        Raises:
            RuntimeError: The worker refuses a row.
        """
        async with open_channel(address) as channel:
            call = worker_pb2_grpc.WorkerServiceStub(channel).Execute()
            for group in range(self._num_plans):
                await call.write(self._admit(group))
            for _ in range(self._num_plans):
                await _read(call)
            begin = time.perf_counter()
            in_flight = deque((group, 1) for group in range(self._num_plans))
            for group in range(self._num_plans):
                await call.write(self._decode(group))
            while in_flight:
                group, step = in_flight.popleft()
                await _read(call)
                if step < self._num_steps:
                    await call.write(self._decode(group))
                    in_flight.append((group, step + 1))
            seconds = time.perf_counter() - begin
            call.cancel()
        return seconds

    def _slots(self, group: int) -> range:
        return range(group * self.rows_per_plan, (group + 1) * self.rows_per_plan)

    def _admit(self, group: int) -> worker_pb2.ExecuteRequest:
        slots = self._slots(group)
        per_row = -(-(len(PROMPT) + self._num_steps + 1) // _BLOCK_SIZE)
        request = self._plan(group, len(PROMPT), per_row)
        request.new_blocks = to_bytes(
            [per_row * slot + block for slot in slots for block in range(per_row)]
        )
        for slot in slots:
            request.admissions.add(
                slot=slot,
                request_id=str(slot),
                token_ids=to_bytes([*PROMPT[1:], 3 + slot]),
                num_prompt_tokens=len(PROMPT),
            )
        return request

    def _decode(self, group: int) -> worker_pb2.ExecuteRequest:
        return self._plan(group, 1, 0)

    def _plan(self, group: int, num_known: int, num_new: int) -> worker_pb2.ExecuteRequest:
        slots = list(self._slots(group))
        self._sequence += 1
        return worker_pb2.ExecuteRequest(
            sequence=self._sequence,
            slots=to_bytes(slots),
            num_known_tokens=to_bytes([num_known] * len(slots)),
            num_draft_tokens=to_bytes([0] * len(slots)),
            num_new_blocks=to_bytes([num_new] * len(slots)),
        )


async def _read(call: Any) -> None:
    response = await call.read()
    if not isinstance(response, worker_pb2.ExecuteResponse):
        raise RuntimeError(f"the worker has ended the stream: {await call.details()}")
    numbers = from_bytes(response.num_emitted_tokens)
    if response.errors or (numbers != 1).any():
        raise RuntimeError(f"the worker has not run every row: {list(response.errors)}")
