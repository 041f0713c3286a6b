"""Requests that keep a scheduler busy, with or without speculation, for a while."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from optimist.scheduler.v1 import scheduler_pb2
from optimist.worker.v1 import worker_pb2, worker_pb2_grpc
from optimist_bench.harness.services import SchedulerStream
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.network.channel import open_channel

PROMPT = tuple(range(4, 20))
MAX_TOKENS = 1024
"""Of a request; one that ends during a slice is followed by another."""
SETTLING_TOKENS = 8
"""Tokens that each request has before it is measured."""
LEAST_STEPS = 24
"""Steps of a slice, however long they take."""


@dataclass(frozen=True)
class StepCosts:
    """What the worker measured at its start."""

    num_tokens: tuple[int, ...]
    """Tokens of passes, ascending."""
    pass_us: tuple[int, ...]
    """Their times."""
    drafter_us: tuple[int, ...]
    """Times of the drafter for one row, by the depth of its drafts from 1 on."""


async def describe_costs(worker: str) -> StepCosts:
    """Asks the worker at host:port; raises ValueError if it does not accept by chance."""
    async with open_channel(worker) as channel:
        stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        description = await stub.Describe(worker_pb2.DescribeRequest())
    if not description.is_synthetic:
        raise ValueError("the worker does not accept drafts by chance")
    return StepCosts(
        tuple(from_bytes(description.cost_num_tokens).tolist()),
        tuple(from_bytes(description.cost_us).tolist()),
        tuple(from_bytes(description.drafter_us).tolist()),
    )


class Load:
    """Requests of one gateway, so many at a time."""

    def __init__(self, stream: SchedulerStream) -> None:
        """Takes the stream to the scheduler."""
        self._stream = stream
        self._num_added = 0
        self._lengths: dict[int, int] = {}
        """Tokens of the requests that run, by handle."""

    async def measure(
        self,
        batch_size: int,
        seconds: float,
        *,
        speculates: bool,
        least_steps: int = LEAST_STEPS,
    ) -> float:
        """Runs so many requests for a while and some steps; returns tokens per second.

        Prompts and the first tokens are not counted; the scheduler is empty before and afterwards.

        Raises:
            RuntimeError: The scheduler ends a request, or the stream, for another reason.
        """
        max_drafts = None if speculates else 0
        for _ in range(batch_size):
            await self._add(max_drafts)
        while min(self._lengths.values()) < SETTLING_TOKENS:
            await self._read(max_drafts)
        num_tokens, num_steps, started = 0, 0, perf_counter()
        now = started
        while now < started + seconds or num_steps < least_steps:
            new = await self._read(max_drafts)
            num_tokens, num_steps = num_tokens + new, num_steps + (new > 0)
            now = perf_counter()
        await self._end()
        return num_tokens / (now - started)

    async def _add(self, max_draft_tokens: int | None) -> None:
        self._num_added += 1
        handle = self._num_added
        self._lengths[handle] = 0
        add = scheduler_pb2.Add(
            handle=handle,
            request_id=f"crossover-{handle}",
            prompt_token_ids=to_bytes(PROMPT),
            max_tokens=MAX_TOKENS,
            max_draft_tokens=max_draft_tokens,
        )
        # What is accepted by chance goes by the seed: each request gets its own chances.
        add.sampling.seed = handle
        await self._stream.add(add)

    async def _read(self, max_draft_tokens: int | None) -> int:
        """Reads one response, replaces requests that ended; returns the number of new tokens."""
        response = await self._next()
        for finished in response.finished:
            del self._lengths[finished.handle]
            if finished.reason != scheduler_pb2.FINISH_REASON_LENGTH:
                raise RuntimeError(f"a request ended: {finished.message}")
            await self._add(max_draft_tokens)
        return len(from_bytes(response.token_ids))

    async def _next(self) -> scheduler_pb2.ConnectResponse:
        response = await self._stream.read()
        handles = from_bytes(response.handles).tolist()
        for handle, count in zip(handles, from_bytes(response.num_tokens).tolist(), strict=True):
            self._lengths[handle] += count
        return response

    async def _end(self) -> None:
        """Aborts all requests and waits for their ends."""
        for handle in self._lengths:
            await self._stream.abort(handle)
        while self._lengths:
            for finished in (await self._next()).finished:
                del self._lengths[finished.handle]
