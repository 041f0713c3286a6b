"""The loop: send plans, deliver outputs, prepare the next plan, settle results."""

import asyncio
import logging
from time import monotonic, perf_counter

from optimist_common.endpoints import Endpoints
from optimist_common.tracing import OFF, Tracer
from optimist_scheduler import metrics
from optimist_scheduler.commands import Commands
from optimist_scheduler.core.check import ResultError
from optimist_scheduler.core.output import NO_OUTPUTS
from optimist_scheduler.core.plan import StepResult
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.window import Window
from optimist_scheduler.delivery import Delivery
from optimist_scheduler.journal import Journal
from optimist_scheduler.proposers import Proposers
from optimist_scheduler.recorded_scheduler import AnyScheduler, RecordedScheduler
from optimist_scheduler.request_watch import RequestWatch
from optimist_scheduler.settings import SchedulerSettings
from optimist_scheduler.worker_description import WorkerDescription
from optimist_scheduler.worker_link import WorkerLink, WorkerLostError

logger = logging.getLogger(__name__)

PASS_MEMORY = 1 / 8
"""Weight of a pass among those that tell how long the next one will take."""


class Engine:
    """Runs the requests of all gateways on one worker."""

    def __init__(self, settings: SchedulerSettings, tracer: Tracer = OFF) -> None:
        """Sets up an engine that is not connected; raises SetupError if it cannot log."""
        self._watch = RequestWatch(tracer)
        self._news = asyncio.Event()
        self._worker = WorkerLink(settings, Endpoints(settings.workers).peers[0], self._news.set)
        self._proposers = Proposers(settings, self._set_window, self._find_unaligned)
        path = settings.replay_log
        self._journal = Journal(path, settings.replay_log_mib) if path else None
        self.delivery = Delivery(self._proposers, self._watch)
        self._scheduler: AnyScheduler | None = None
        self._commands: Commands | None = None
        self._metrics = metrics.StatsMetrics()
        self._pass_seconds = 0.0
        self._waits_since = 0.0
        """When the last result came, or the plan was sent that is waited for."""
        self.description: WorkerDescription | None = None
        """The worker; None until it was reached."""

    @property
    def scheduler(self) -> AnyScheduler:
        """The core; raises LookupError before `connect`."""
        if self._scheduler is None:
            raise LookupError("the worker has not been reached")
        return self._scheduler

    @property
    def commands(self) -> Commands:
        """What gateways may ask for; raises LookupError before `connect`."""
        if self._commands is None:
            raise LookupError("the worker has not been reached")
        return self._commands

    def seconds_at_work(self) -> float:
        """Returns for how long the worker has answered no plan; 0 if it has none."""
        if self._scheduler is None or not self._scheduler.num_plans_in_flight:
            return 0.0
        return monotonic() - self._waits_since

    async def connect(self) -> None:
        """Waits for the worker and begins anew with it, keeping all requests."""
        description = await self._worker.connect()
        config = description.config
        if self.description is None or self.description.config != config:
            values = config.model_dump()
            logger.info("engine: %s", " ".join(f"{name}={values[name]}" for name in values))
        if description.is_synthetic:
            logger.warning("the worker accepts drafts by chance: what it says is meaningless")
        if self._scheduler is None:
            self._scheduler = self._begin(description)
            self._commands = Commands(
                self._scheduler, self.delivery, self._proposers, self._watch, self._news.set
            )
        else:
            self.delivery.end(
                self._scheduler.restart(config, description.costs, description.drafter_us)
            )
        self.description = description

    async def run(self) -> None:
        """Runs for ever, after `connect`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._proposers.run())
            try:
                await self._run(self.scheduler)
            finally:
                if isinstance(self.scheduler, RecordedScheduler):
                    self.scheduler.close()
                await self._worker.close()

    def _begin(self, worker: WorkerDescription) -> AnyScheduler:
        if self._journal is None:
            return Scheduler(worker.config, worker.costs, worker.drafter_us)
        return RecordedScheduler(worker.config, worker.costs, worker.drafter_us, self._journal)

    async def _run(self, scheduler: AnyScheduler) -> None:
        while True:
            try:
                await self._wait_for_windows(scheduler)
                await self._send_plans(scheduler)
                self.delivery.flush()
                self.commands.answer_pauses()
                self._prepare(scheduler)
                self._metrics.update(scheduler)
                await self._settle_results(scheduler)
            except (WorkerLostError, ResultError) as error:
                await self._reconnect(error)

    async def _wait_for_windows(self, scheduler: AnyScheduler) -> None:
        """Waits a little for drafts rather than go on without."""
        if not scheduler.can_send:
            return
        is_idle = scheduler.num_plans_in_flight == 0
        num_running = scheduler.num_running * is_idle
        if self._proposers.is_worth_a_wait(num_running, self._pass_seconds):
            # The proposers have to see the last tokens to answer them.
            self.delivery.flush()
            if await self._proposers.wait_for_windows():
                is_idle = scheduler.num_plans_in_flight <= self._worker.num_results
                self._proposers.waits.num_idle += is_idle
                metrics.PROPOSER_IDLE_WAITS.inc(is_idle)

    async def _send_plans(self, scheduler: AnyScheduler) -> None:
        num_starved = scheduler.stats.num_starved
        while scheduler.can_send and (plan := scheduler.schedule(monotonic())) is not None:
            self._worker.send(plan, self._watch.trace_parents)
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

    def _prepare(self, scheduler: AnyScheduler) -> None:
        """Computes the next decision while the worker computes."""
        started, num_prescheduled = perf_counter(), scheduler.stats.num_prescheduled
        scheduler.prepare()
        if scheduler.stats.num_prescheduled > num_prescheduled:
            self._metrics.preparation_seconds = perf_counter() - started

    async def _settle_results(self, scheduler: AnyScheduler) -> None:
        """Waits for a result or a command, and settles all results that have arrived."""
        await self._news.wait()
        self._news.clear()
        while (result := self._worker.receive()) is not None:
            self._settle(scheduler, result)

    def _settle(self, scheduler: AnyScheduler, result: StepResult) -> None:
        self._pass_seconds += (result.step_ns / 1e9 - self._pass_seconds) * PASS_MEMORY
        self._waits_since = monotonic()
        outputs = scheduler.settle(result)
        if outputs is not NO_OUTPUTS:
            self.delivery.hold(outputs)
            metrics.observe_result(result, outputs)

    async def _reconnect(self, error: Exception) -> None:
        logger.warning("lost the worker, its requests wait: %s", error)
        metrics.WORKER_LOSSES.inc()
        self.delivery.flush()
        # Until it is back nothing is in flight, and commands are carried out as ever.
        scheduler, worker = self.scheduler, self.description
        times = (worker.costs, worker.drafter_us) if worker else ((), ())
        self.delivery.end(scheduler.restart(scheduler.config, *times))
        self.commands.answer_pauses()
        await self.connect()

    def _set_window(self, request_id: str, window: Window) -> bool:
        return self.scheduler.set_window(request_id, window)

    def _find_unaligned(self) -> list[str]:
        return self.scheduler.find_unaligned()
