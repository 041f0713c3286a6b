"""The loop of one worker: send plans, deliver outputs, prepare the next plan, settle results."""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic, perf_counter

from optimist.worker.v1 import worker_pb2
from optimist_common.network.endpoints import Peer
from optimist_scheduler.core.base.values import Ended, FinishReason
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.gateways.delivery import Delivery
from optimist_scheduler.journal import Journal
from optimist_scheduler.observing.metrics import WorkerMetrics
from optimist_scheduler.observing.request_watch import RequestWatch
from optimist_scheduler.proposers.proposers import Proposers
from optimist_scheduler.proposers.waits import PASS_MEMORY, find_slack
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.workers.description import WorkerDescription
from optimist_scheduler.workers.dispatcher import Worker
from optimist_scheduler.workers.link import CheckWorker, WorkerLink

logger = logging.getLogger(__name__)


class Engine(Worker):
    """Runs requests on one worker, from each connection to its loss."""

    def __init__(
        self,
        settings: SchedulerSettings,
        peer: Peer,
        delivery: Delivery,
        proposers: Proposers,
        watch: RequestWatch,
        answer_pauses: Callable[[], None],
        journal: Journal,
    ) -> None:
        super().__init__(peer, journal)
        self._watch, self._delivery, self._proposers = watch, delivery, proposers
        self._answer_pauses = answer_pauses
        self._news = asyncio.Event()
        self._link = WorkerLink(settings, peer, self._take_news)
        self._metrics = WorkerMetrics(peer.target)
        self._pass_seconds = 0.0
        self._waits_since = 0.0
        """When the last result came, or the plan was sent that is waited for."""

    def seconds_at_work(self) -> float:
        """Returns for how long the worker has answered no plan; 0 if it has none."""
        if not self.has_scheduler or not self.scheduler.num_plans_in_flight:
            return 0.0
        return monotonic() - self._waits_since

    async def reach(self, check: CheckWorker) -> WorkerDescription:
        """Waits for the worker; returns what it holds.

        `check` raises ValueError for a worker that cannot be used; it is tried again.
        """
        return await self._link.connect(check)

    def begin(self, description: WorkerDescription) -> list[Ended]:
        """Begins anew with a worker that was reached; returns the ends of what does not fit it."""
        config = description.config
        if self.description is None or self.description.config != config:
            values = config.model_dump()
            logger.info("engine: %s", " ".join(f"{name}={values[name]}" for name in values))
        ended = super().begin(description)
        self._metrics.begin(self.scheduler)
        return ended

    async def run(self) -> None:
        """Runs, after `begin`, until the worker is lost; raises WorkerLostError or ResultError."""
        scheduler = self.scheduler
        while True:
            await self._send_plans(scheduler)
            self._delivery.flush()
            self._answer_pauses()
            self._prepare_ahead(scheduler)
            await self._settle_results()

    def lose(self) -> None:
        """Notes that the worker was lost; what the scheduler has is to leave it."""
        self.is_connected = False
        self._metrics.lose()

    def give_up(self, reason: str) -> None:
        """Takes the worker for lost, though its stream is open."""
        self._link.fail(reason)

    def wake(self) -> None:
        """Lets the loop look for something new to do."""
        self._news.set()

    def _take_news(self) -> None:
        """Wakes the loop from what it waits for: the worker has answered, or is lost."""
        self._news.set()
        self._proposers.waits.note_answer()

    async def close(self) -> None:
        """Ends the connection, and the worker's part of the journal."""
        if self.has_scheduler:
            self.end_journal()
        self._metrics.remove()
        await self._link.close()

    async def _wait_for_windows(self, scheduler: Scheduler) -> None:
        """Waits a little for drafts rather than go on without."""
        slack_seconds = 0.0
        if scheduler.num_plans_in_flight:
            slack_seconds = find_slack(self._pass_seconds, monotonic() - self._waits_since)
        find_unaligned = scheduler.find_unaligned
        if self._proposers.is_worth_a_wait(
            find_unaligned, scheduler.num_running, self._pass_seconds, slack_seconds
        ):
            # The proposers have to see the last tokens to answer them.
            self._delivery.flush()
            await self._proposers.wait_for_windows(
                find_unaligned, slack_seconds, self._is_worker_idle
            )

    def _is_worker_idle(self) -> bool:
        return self.scheduler.num_plans_in_flight <= self._link.num_results

    async def _send_plans(self, scheduler: Scheduler) -> None:
        num_starved = scheduler.stats.num_starved
        while scheduler.can_send:
            # Also between two plans: while a prompt is computed, its window may come.
            await self._wait_for_windows(scheduler)
            if not scheduler.can_send or (plan := self.schedule(monotonic())) is None:
                break
            self._link.send(plan, self._watch.trace_parents)
            if scheduler.num_plans_in_flight == 1:
                self._waits_since = monotonic()
            # The plan is on its way before anything else is done.
            await asyncio.sleep(0)
            self._watch.plan(plan, monotonic())
            self._metrics.observe_plan(plan, scheduler)
        if scheduler.stats.num_starved > num_starved:
            logger.warning(
                "%d requests go first now: later ones had overtaken them for more than %g seconds",
                scheduler.stats.num_starved - num_starved,
                scheduler.config.starvation_seconds,
            )

    def _prepare_ahead(self, scheduler: Scheduler) -> None:
        """Computes the next decision while the worker computes."""
        started, num_prescheduled = perf_counter(), scheduler.stats.num_prescheduled
        self.prepare()
        if scheduler.stats.num_prescheduled > num_prescheduled:
            self._metrics.preparation_seconds = perf_counter() - started

    async def _settle_results(self) -> None:
        """Waits for a result or a command, and settles all results that have arrived."""
        await self._news.wait()
        self._news.clear()
        while (received := self._link.receive()) is not None:
            self._settle(*received)

    def _settle(self, result: StepResult, message: worker_pb2.ExecuteResponse) -> None:
        self._pass_seconds += (result.step_ns / 1e9 - self._pass_seconds) * PASS_MEMORY
        waits = self._proposers.waits
        waits.note_pass()
        self._waits_since = monotonic()
        outputs = self.settle(result, message)
        self._delivery.hold(outputs)
        times = waits.answer_seconds, waits.seconds_per_pass
        self._metrics.observe_result(result, outputs, self.scheduler, *times)
        for ended in outputs.ended:
            if ended.finished.reason is FinishReason.ERROR:
                logger.warning("request %s ends: %s", ended.request_id, ended.finished.message)
