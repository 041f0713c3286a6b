"""The loop: schedule, execute, settle, deliver, observe."""

import asyncio
import logging
from collections.abc import Sequence

from optimist_scheduler import metrics
from optimist_scheduler.core.output import Finished, Output, RejectionError
from optimist_scheduler.core.plan import Plan, StepResult
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.settle import ResultError
from optimist_scheduler.core.validate import NewRequest
from optimist_scheduler.core.window import Window
from optimist_scheduler.gateway_stream import GatewayStream
from optimist_scheduler.proposers import Proposers
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.worker_link import WorkerDescription, WorkerLink, WorkerLostError

logger = logging.getLogger(__name__)


class Engine:
    """Runs the requests of all gateways on one worker.

    Commands and windows take effect when they arrive, also while the worker computes; what is in
    flight does not change by them.
    """

    def __init__(self, worker: WorkerLink, settings: SchedulerSettings) -> None:
        self._worker = worker
        addresses = settings.proposers if settings.num_speculative_tokens else []
        self._proposers = Proposers(addresses, settings.proposer_wait_ms, self._set_window)
        self._scheduler: Scheduler | None = None
        self._streams: dict[str, tuple[GatewayStream, int]] = {}
        self._work = asyncio.Event()
        self.description: WorkerDescription | None = None
        """The worker; None until it was reached."""

    @property
    def scheduler(self) -> Scheduler:
        """The core; raises LookupError before `connect`."""
        if self._scheduler is None:
            raise LookupError("the worker has not been reached")
        return self._scheduler

    @property
    def num_running(self) -> int:
        """Requests with a slot."""
        return self._scheduler.num_running if self._scheduler else 0

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return self._scheduler.num_waiting if self._scheduler else 0

    async def connect(self) -> None:
        """Waits for the worker and begins anew with it, keeping all requests."""
        self.description = await self._worker.connect()
        if self._scheduler is None:
            self._scheduler = Scheduler(self.description.limits)
        else:
            self._deliver(self._scheduler.restart(self.description.limits))

    async def run(self) -> None:
        """Runs for ever, after `connect`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._proposers.run())
            try:
                await self._run(self.scheduler)
            finally:
                await self._worker.close()

    async def _run(self, scheduler: Scheduler) -> None:
        while True:
            await self._work.wait()
            await self._proposers.wait_for_windows(scheduler.find_unaligned)
            plan = self._schedule(scheduler)
            if plan is None:
                self._work.clear()
                continue
            try:
                result = await self._worker.execute(plan)
                outputs = scheduler.settle(result)
            except (WorkerLostError, ResultError) as error:
                await self._reconnect(error)
                continue
            self._count(result, outputs)
            self._deliver(outputs)
            self._proposers.observe(outputs)

    def add(self, stream: GatewayStream, handle: int, new: NewRequest) -> None:
        """Adds a request of a stream; one that cannot be added gets its end at once."""
        try:
            self.scheduler.add(new)
        except RejectionError as error:
            self.reject(stream, handle, error.finished)
            return
        self._streams[new.request_id] = stream, handle
        stream.request_ids[handle] = new.request_id
        self._proposers.open(new.request_id, new.predicted_token_ids)
        self._work.set()

    def reject(self, stream: GatewayStream, handle: int, finished: Finished) -> None:
        """Sends the end of a request that is not added."""
        metrics.FINISHED.labels(finished.reason.value).inc()
        if not stream.deliver([(handle, Output("", [], 0, finished))]):
            self.close(stream)

    def abort(self, stream: GatewayStream, handle: int, *, wants_finished: bool = False) -> None:
        """Ends a request of a stream; without an answer, unless its account is wanted."""
        request_id = stream.request_ids.pop(handle, None)
        if request_id is None:
            return
        self._forget(request_id)
        finished = self.scheduler.abort(request_id)
        if finished is not None:
            metrics.FINISHED.labels(finished.reason.value).inc()
            if wants_finished:
                stream.deliver([(handle, Output(request_id, [], 0, finished))])

    def close(self, stream: GatewayStream) -> None:
        """Aborts all requests of a stream."""
        for handle in list(stream.request_ids):
            self.abort(stream, handle)

    def _schedule(self, scheduler: Scheduler) -> Plan | None:
        decision = scheduler.compute_schedule()
        plan = scheduler.apply_schedule(decision)
        metrics.PREEMPTIONS.inc(len(decision.preempted))
        metrics.RUNNING.set(scheduler.num_running)
        metrics.WAITING.set(scheduler.num_waiting)
        metrics.FREE_BLOCKS.set(scheduler.num_free_blocks)
        return plan

    async def _reconnect(self, error: Exception) -> None:
        logger.warning("lost the worker, its requests wait: %s", error)
        metrics.WORKER_LOSSES.inc()
        await self.connect()

    def _deliver(self, outputs: Sequence[Output]) -> None:
        """Sends each stream the outputs of its requests in one response."""
        by_stream: dict[GatewayStream, list[tuple[int, Output]]] = {}
        for output in outputs:
            stream, handle = self._streams[output.request_id]
            by_stream.setdefault(stream, []).append((handle, output))
            if output.finished is not None:
                metrics.FINISHED.labels(output.finished.reason.value).inc()
                self._forget(output.request_id)
        for stream, items in by_stream.items():
            if not stream.deliver(items):
                self.close(stream)

    def _forget(self, request_id: str) -> None:
        del self._streams[request_id]
        self._proposers.close(request_id)

    def _set_window(self, request_id: str, window: Window) -> None:
        self.scheduler.set_window(request_id, window)

    def _count(self, result: StepResult, outputs: Sequence[Output]) -> None:
        metrics.STEPS.inc()
        metrics.TOKENS.inc(sum(len(output.token_ids) for output in outputs))
        metrics.DRAFTED.inc(int(result.num_drafted_tokens.sum()))
        metrics.ACCEPTED.inc(int(result.num_accepted_tokens.sum()))
