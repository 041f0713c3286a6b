"""Requests with predictions, so many at a time, whose answers are known."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_bench.harness.pair import Pair
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.network.channel import open_channel

_STATS_HANDLE = 0


@dataclass(slots=True)
class Totals:
    """What came of all requests."""

    all_right: bool = True
    num_tokens: int = 0
    num_passes: int = 0
    num_accepted: int = 0
    num_rejected: int = 0
    seconds: float = 0.0
    stats: scheduler_pb2.Stats = field(default_factory=scheduler_pb2.Stats)
    """The scheduler's, at the end."""


class WindowLoad:
    """One gateway's stream to the scheduler; the first token of a prompt is the pair's number."""

    def __init__(
        self, scheduler: str, pairs: Sequence[Pair], num_requests: int, concurrency: int
    ) -> None:
        """Takes the scheduler's host:port, the pairs, and how many requests to send in all."""
        self._address, self._pairs = scheduler, pairs
        self._num_requests, self._concurrency = num_requests, concurrency
        self._num_added = 0
        self._texts: dict[int, list[int]] = {}
        """Output so far, by handle, of the requests that run."""
        self._totals = Totals()

    async def run(self) -> Totals:
        """Runs all requests.

        Raises:
            RuntimeError: The scheduler refuses a command, or ends the stream.
        """
        async with open_channel(self._address) as channel:
            stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            call = stub.Connect()
            started = perf_counter()
            for _ in range(min(self._concurrency, self._num_requests)):
                await self._add(call)
            while self._texts:
                await self._read(call)
            self._totals.seconds = perf_counter() - started
            await call.write(
                scheduler_pb2.ConnectRequest(get_stats=scheduler_pb2.GetStats(), command_id=0)
            )
            while not self._totals.stats.num_plans:
                await self._read(call)
            call.cancel()
        return self._totals

    async def _add(self, call: Any) -> None:
        self._num_added += 1
        handle = self._num_added
        number = (handle - 1) % len(self._pairs)
        pair = self._pairs[number]
        self._texts[handle] = []
        add = scheduler_pb2.Add(
            handle=handle,
            request_id=f"windows-{handle}",
            prompt_token_ids=to_bytes([number]),
            predicted_token_ids=to_bytes(pair.predicted),
            max_tokens=len(pair.truth),
        )
        await call.write(scheduler_pb2.ConnectRequest(add=add, command_id=handle))

    async def _read(self, call: Any) -> None:
        response = await call.read()
        if not isinstance(response, scheduler_pb2.ConnectResponse):
            raise RuntimeError(f"the scheduler ended the stream: {await call.details()}")
        for reply in response.replies:
            if reply.error:
                raise RuntimeError(f"the scheduler refused a command: {reply.error}")
            if reply.command_id == _STATS_HANDLE:
                self._totals.stats.CopyFrom(reply.stats)
        tokens, start = from_bytes(response.token_ids).tolist(), 0
        counts = from_bytes(response.num_tokens).tolist()
        for handle, count in zip(from_bytes(response.handles).tolist(), counts, strict=True):
            self._texts[handle] += tokens[start : start + count]
            start += count
        for finished in response.finished:
            self._end(finished)
            if self._num_added < self._num_requests:
                await self._add(call)

    def _end(self, finished: scheduler_pb2.Finished) -> None:
        totals, text = self._totals, self._texts.pop(finished.handle)
        truth = self._pairs[(finished.handle - 1) % len(self._pairs)].truth
        totals.all_right &= text == list(truth)
        totals.num_tokens += len(text)
        totals.num_passes += finished.num_passes
        totals.num_accepted += finished.accepted_prediction_tokens
        totals.num_rejected += finished.rejected_prediction_tokens
