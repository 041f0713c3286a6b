"""Requests that go through a fleet step by step, as a scheduler's would."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from itertools import chain

from redis import Redis

from optimist_bench.harness.pair import Pair
from optimist_bench.replicas.client import Counts, FleetClient
from optimist_bench.replicas.fleet import Fleet, Mode
from optimist_bench.replicas.target import SimulatedRequest


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of all requests in one mode."""

    num_passes: int
    num_tokens: int
    all_right: bool
    """Whether every output is the true one."""
    counts: Counts
    answer_seconds: list[float]
    request_bytes: list[int]
    """What Redis holds of each request at its end, sources apart."""
    source_bytes: list[int]


class Load:
    """Pairs that go through a fleet, some at a time; all of them again while it is disturbed."""

    def __init__(
        self,
        fleet: Fleet,
        mode: Mode,
        pairs: Sequence[Pair],
        concurrency: int,
        pass_seconds: float,
    ) -> None:
        """Starts nothing yet.

        Args:
            fleet: Running replicas.
            mode: How to use them, and what happens to them.
            pairs: Predictions and outputs.
            concurrency: Requests at a time.
            pass_seconds: How long each pass takes; later answers are too late for the next.
        """
        self._fleet, self._mode, self._pairs = fleet, mode, pairs
        self._concurrency, self._pass_seconds = concurrency, pass_seconds
        self._client = FleetClient(fleet.addresses, stays=mode.stays)
        self._requests: list[SimulatedRequest] = []

    async def run(self) -> Outcome:
        """Runs every pair to its end, at least once."""
        client, disturbance = self._client, None
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(client.run())
            for link in client.links:
                await link.opened.wait()
            if self._mode.disturb is not None:
                disturbance = tasks.create_task(_as_coroutine(self._mode.disturb(self._fleet)))
            await self._run_round()
            while disturbance is not None and not disturbance.done():
                await self._run_round()
            outcome = self._outcome()
            client.close([request.request_id for request in self._requests])
            await client.wait(self._pass_seconds)
            running.cancel()
        return outcome

    async def _run_round(self) -> None:
        first = len(self._requests)
        waiting = deque(
            SimulatedRequest(f"bench-{number}", pair.predicted, pair.truth)
            for number, pair in enumerate(self._pairs, first)
        )
        self._requests += waiting
        active: list[SimulatedRequest] = []
        while waiting or active:
            while waiting and len(active) < self._concurrency:
                active.append(waiting.popleft())
                self._client.open(active[-1])
            await self._run_step(active)
            active = [request for request in active if not request.is_done]

    async def _run_step(self, active: Sequence[SimulatedRequest]) -> None:
        started = time.perf_counter()
        self._client.send_step(active)
        await self._client.wait(self._pass_seconds)
        await asyncio.sleep(max(0.0, started + self._pass_seconds - time.perf_counter()))
        for request in active:
            request.run_pass()

    def _outcome(self) -> Outcome:
        requests, links = self._requests, self._client.links
        return Outcome(
            num_passes=sum(request.num_passes for request in requests),
            num_tokens=sum(len(request.truth) for request in requests),
            all_right=all(request.output == request.truth for request in requests),
            counts=self._client.counts,
            answer_seconds=list(chain.from_iterable(link.answer_seconds for link in links)),
            request_bytes=_value_sizes(self._fleet, "*:request:*"),
            source_bytes=_value_sizes(self._fleet, "*:sources:*"),
        )


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable


def _value_sizes(fleet: Fleet, pattern: str) -> list[int]:
    with Redis(port=fleet.redis.port) as redis:
        return [redis.strlen(key) for key in redis.scan_iter(pattern)]
