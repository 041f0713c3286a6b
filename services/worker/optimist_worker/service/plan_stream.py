"""The plans of one Execute call: read ahead, run on the model's thread and answered."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from queue import SimpleQueue

from optimist.worker.v1 import worker_pb2
from optimist_worker.core.plan import Plan, PlanError
from optimist_worker.execution.codec import decode_plan, encode_result
from optimist_worker.execution.group import end_process
from optimist_worker.runner.runner import LaunchedPlan, Runner
from optimist_worker.service.observing import RequestSpans, observe_step

MOST_PLANS = 4
"""Plans held that have no answer yet; all further ones wait in gRPC's flow control."""


class Wake(Enum):
    """Stands where a plan would."""

    WAKE = 0


class PlanStream:
    """Reads plans ahead of the running one.

    A plan makes room for another when its answer has gone out. So neither a sender that is
    too fast nor one that reads no answers makes anything here grow without bound.

    `take`, `answer` and `finish` are the model thread's, `wake` is any thread's;
    all else belongs to the event loop.
    """

    def __init__(
        self, requests: AsyncIterator[worker_pb2.ExecuteRequest], most_plans: int = MOST_PLANS
    ) -> None:
        """Begins to read; holds at most so many plans that have no answer yet."""
        self.replaced = False
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(most_plans)
        self._plans: SimpleQueue[worker_pb2.ExecuteRequest | Wake | None] = SimpleQueue()
        self._answers: asyncio.Queue[worker_pb2.ExecuteResponse | None] = asyncio.Queue()
        # Each number is written by one thread only.
        self._num_read = self._num_taken = 0
        self._at_work_since: float | None = None
        self._reader = asyncio.ensure_future(self._read(requests))

    def take(self, *, is_at_work: bool = False) -> worker_pb2.ExecuteRequest | Wake | None:
        """Waits for the next plan, or for `wake`; plans may be at work meanwhile.

        Returns None when there is no further plan or the stream was closed.
        """
        # Where a plan is at hand nothing is waited for, and a device may be at one before it.
        if not is_at_work and self.is_idle:
            self._at_work_since = None
        request = self._plans.get()
        if self._closed or request is None:
            return None
        if not isinstance(request, Wake):
            self._num_taken += 1
            if not is_at_work:
                self._at_work_since = time.monotonic()
        return request

    def wake(self) -> None:
        """Ends a wait for the next plan; called by any thread."""
        self._plans.put(Wake.WAKE)

    def seconds_at_work(self) -> float:
        """Returns how long the model's thread has neither answered nor waited for a plan."""
        since = self._at_work_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def is_idle(self) -> bool:
        """Whether no plan is waiting; never blocks."""
        return self._num_read == self._num_taken

    def answer(self, response: worker_pb2.ExecuteResponse) -> None:
        """Hands an answer to the event loop."""
        self._at_work_since = time.monotonic()
        self._loop.call_soon_threadsafe(self._answers.put_nowait, response)

    def finish(self) -> None:
        """Says that no answer will follow."""
        self._at_work_since = None
        self._loop.call_soon_threadsafe(self._answers.put_nowait, None)

    async def next_answer(self) -> worker_pb2.ExecuteResponse | None:
        """Returns the next answer, or None when there will be none."""
        return await self._answers.get()

    def sent(self) -> None:
        """Makes room for a plan once the answer to another has gone out."""
        self._room.release()

    def replace(self) -> None:
        """Ends the stream before its next plan, in favour of another stream."""
        self.replaced = True
        self.close()

    def close(self) -> None:
        """Ends the stream before its next plan."""
        self._closed = True
        self._reader.cancel()
        self._plans.put(None)

    def raise_read_error(self) -> None:
        """Raises what reading the call has failed with, if it has."""
        if self._reader.done() and not self._reader.cancelled():
            self._reader.result()

    async def _read(self, requests: AsyncIterator[worker_pb2.ExecuteRequest]) -> None:
        try:
            await self._room.acquire()
            async for request in requests:
                self._num_read += 1
                self._plans.put(request)
                await self._room.acquire()
        finally:
            self._plans.put(None)


logger = logging.getLogger(__name__)


def run_plans(runner: Runner, stream: PlanStream, spans: RequestSpans | None = None) -> None:
    """Runs plans, from an empty worker on, until the stream ends; answers each at once.

    Raises PlanError if one is malformed; those before it were answered.
    """
    spans = spans or RequestSpans()
    try:
        runner.release_all()
        _PlanLoop(runner, stream, spans).run()
    except PlanError:
        raise
    except Exception as error:
        if runner.engine.executor.settles_late:
            # The other stages may be anywhere in a plan by now.
            end_process(f"a plan cannot be led through the stages: {error!r}")
        raise
    finally:
        spans.end_all()
        stream.finish()


@dataclass(slots=True)
class _PlanRun:
    """One run of a plan."""

    launched: LaunchedPlan
    start_ns: int
    idle_ns: int


class _PlanLoop:
    """Launches plans and answers them in turn: those of one stream, oldest first.

    A plan is launched as soon as it is there and the executor has room, whatever others are in
    flight. Among stages it waits for those with which it shares a slot: so a scheduler that does
    not know of stages gets right results, one plan after the other.
    """

    def __init__(self, runner: Runner, stream: PlanStream, spans: RequestSpans) -> None:
        self._runner, self._stream, self._spans = runner, stream, spans
        self._executor = runner.engine.executor
        self._running: deque[_PlanRun] = deque()
        """Launched and not answered."""
        self._is_woken = False
        """Whether the stream is woken when a step has ended."""
        self._end_ns = 0
        """When the last run was over; 0 before the first."""

    def run(self) -> None:
        """Launches and answers until the stream ends."""
        self._is_woken = self._executor.on_step_end(self._stream.wake)
        try:
            while self._launch_next():
                while self._running and self._must_finish:
                    self._finish_oldest()
        finally:
            self._executor.on_step_end(None)
            while self._running:
                self._finish_oldest()

    @property
    def _must_finish(self) -> bool:
        """Whether the oldest run is finished before anything else; else a plan may come first."""
        newest, step = self._running[-1].launched, self._running[0].launched.step
        # What a grammar allows next is known when the step is over.
        is_held_up = newest.has_grammar and not self._executor.settles_late
        if is_held_up or len(self._running) == self._executor.most_plans:
            return True
        if not self._stream.is_idle:
            return False
        return not self._is_woken or step is None or step.is_over

    def _launch_next(self) -> bool:
        """Launches the next plan, waiting for one; returns whether the stream goes on."""
        must_wait = self._stream.is_idle and self._end_ns > 0 and not self._running
        before = time.perf_counter_ns()
        request = self._stream.take(is_at_work=bool(self._running))
        if isinstance(request, Wake):
            return True
        if request is None:
            return False
        start = time.perf_counter_ns()
        plan = decode_plan(request, self._runner.engine.state.sizes)
        self._spans.begin(request)
        if self._executor.settles_late:
            self._make_way(plan)
        idle_ns = start - before if must_wait else 0
        self._running.append(_PlanRun(self._runner.launch(plan), start, idle_ns))
        return True

    def _make_way(self, plan: Plan) -> None:
        """Finishes the plans that it shares a slot with; the runner keeps new windows for them."""
        touched = {*plan.released_slots, *plan.slots.tolist()}
        touched.update(admission.slot for admission in plan.admissions)
        while any(not touched.isdisjoint(run.launched.rows) for run in self._running):
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        """Waits for the oldest run and answers it."""
        run = self._running.popleft()
        result = self._runner.collect(run.launched)
        now = time.perf_counter_ns()
        step_ns = now - max(run.start_ns, self._end_ns)
        self._end_ns = now
        self._stream.answer(encode_result(result, step_ns, run.idle_ns))
        self._spans.note(result, step_ns)
        observe_step(result, step_ns / 1e9, run.idle_ns / 1e9)
        for slot, error in result.errors.items():
            logger.warning("plan %d, slot %d: %s", result.sequence, slot, error)
